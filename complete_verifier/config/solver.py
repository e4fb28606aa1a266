"""Keys of the section `solver`: how bounds are computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from complete_verifier.config.option import Section, option

BoundPropMethod = Literal[
    "alpha-crown",
    "crown",
    "forward",
    "forward+crown",
    "forward+backward",
    "alpha-forward",
    "crown-ibp",
    "init-crown",
    "ibp",
    "dynamic-forward",
    "dynamic-forward+crown",
    "dynamic-forward+backward",
]
InitBoundPropMethod = Literal[
    "same",
    "alpha-crown",
    "crown",
    "forward",
    "forward+crown",
    "forward+backward",
    "alpha-forward",
    "crown-ibp",
    "init-crown",
    "ibp",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class CrownConfig(Section):
    """The plain backward pass."""

    SECTION: ClassVar[str] = "solver.crown"

    batch_size: int = option(
        1000000000,
        "--crown_batch_size",
        "Most rows in one backward pass; fewer are taken where memory is short.",
        at_least=1,
    )
    max_crown_size: int = option(
        1000000000,
        "--max_crown_size",
        "Most neurons of a layer that are bounded; the rest keep interval bounds.",
        at_least=0,
    )
    activation_bound_option: Literal["adaptive", "same-slope", "zero-lb", "one-lb"] = option(
        "adaptive", "--activation_bound_option", "Lower slope of a ReLU before optimisation."
    )
    compare_crown_with_ibp: bool = option(
        False, "--compare_crown_with_ibp", "Intersect bounds with interval bounds."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AlphaCrownConfig(Section):
    """Optimisation of the lower slopes (alpha) before branching."""

    SECTION: ClassVar[str] = "solver.alpha-crown"

    alpha: bool = option(True, "--no_alpha", "Optimise alpha at all.", negated=True)
    lr_alpha: float = option(0.1, "--lr_init_alpha", "Learning rate of alpha.", at_least=0)
    iteration: int = option(100, "--init_iteration", "Optimisation steps.", at_least=0)
    share_alphas: bool = option(
        False, "--share_alphas", "Share alpha among the rows of a layer, to save memory."
    )
    lr_decay: float = option(
        0.98, "--alpha_lr_decay", "Factor on the learning rate after each step.", above=0
    )
    full_conv_alpha: bool = option(
        True, "--no_full_conv_alpha", "One alpha per neuron in convolutions.", negated=True
    )
    max_coeff_mul: float = option(
        float("inf"), "--max_coeff_mul", "Largest coefficient in a multiplication's relaxation."
    )
    matmul_share_alphas: bool = option(
        False, "--matmul_share_alphas", "Share alpha in products of two variables."
    )
    disable_optimization: tuple[str, ...] = option(
        (), "--disable_optimization", "Operators whose relaxation is not optimised."
    )
    max_time: float = option(
        1.0, "--init_max_time", "Most time to spend, as a fraction of what is left.", at_least=0
    )
    input_split_alpha_iteration: int = option(
        5, "--input_split_alpha_iteration", "Optimisation steps per input split.", at_least=0
    )
    input_split_lr_alpha: float = option(
        0.05, "--input_split_lr_alpha", "Learning rate of alpha in input splits.", at_least=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class InvpropConfig(Section):
    """Constraints on the output used to tighten inner bounds."""

    SECTION: ClassVar[str] = "solver.invprop"

    apply_output_constraints_to: tuple[str, ...] = option(
        (), "--apply_output_constraints_to", "Layers that use the output constraint."
    )
    tighten_input_bounds: bool = option(
        False, "--tighten_input_bounds", "Tighten the input box with the output constraint."
    )
    best_of_oc_and_no_oc: bool = option(
        False, "--best_of_oc_and_no_oc", "Keep the better of both bounds."
    )
    directly_optimize: tuple[str, ...] = option(
        (), "--directly_optimize", "Layers whose bounds are optimised themselves."
    )
    oc_lr: float = option(0.1, "--oc_lr", "Learning rate of the multipliers.", at_least=0)
    share_gammas: bool = option(False, "--share_gammas", "Share multipliers in a layer.")


@dataclass(frozen=True, kw_only=True, slots=True)
class BetaCrownConfig(Section):
    """Optimisation of slopes and split multipliers (beta) in branch and bound."""

    SECTION: ClassVar[str] = "solver.beta-crown"

    lr_alpha: float = option(0.01, "--lr_alpha", "Learning rate of alpha.", at_least=0)
    lr_beta: float = option(0.05, "--lr_beta", "Learning rate of beta.", at_least=0)
    lr_decay: float = option(
        0.98, "--lr_decay", "Factor on the learning rates after each step.", above=0
    )
    optimizer: str = option("adam", "--optimizer", "Optimiser of alpha and beta.")
    iteration: int = option(50, "--iteration", "Optimisation steps per round.", at_least=0)
    enable_opt_interm_bounds: bool = option(
        False, "--enable_opt_interm_bounds", "Optimise inner bounds in every subproblem."
    )
    all_node_split_LP: bool = option(  # noqa: N815  (the key's published spelling)
        False, "--enable_all_node_split_LP", "Solve an LP where every neuron is split."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Section):
    """Forward bound propagation."""

    SECTION: ClassVar[str] = "solver.forward"

    refine: bool = option(
        False, "--forward_refine", "Refine forward bounds of unstable neurons backwards."
    )
    max_dim: int = option(
        10000, "--forward_max_dim", "Most input dimensions in one batch.", at_least=1
    )
    reset_threshold: float = option(
        1.0,
        "--reset_start_layer_threshold",
        "Fraction of timed-out neurons beyond which the start layer is reset.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MipConfig(Section):
    """Mixed integer programming, as a verifier or to refine inner bounds."""

    SECTION: ClassVar[str] = "solver.mip"

    unstable_neuron_threshold: int = option(
        0, "--mip_unstable_neuron_threshold", "Unstable neurons from which MIP refines."
    )
    parallel_solvers: int | None = option(
        None, "--mip_multi_proc", "Solver processes; null is one per core.", at_least=1
    )
    solver_threads: int = option(1, "--mip_threads", "Threads per process.", at_least=1)
    refine_neuron_timeout: float = option(
        15.0, "--mip_perneuron_refine_timeout", "Seconds per neuron.", at_least=0
    )
    refine_neuron_time_percentage: float = option(
        0.8, "--mip_refine_timeout", "Fraction of bab.timeout for refinement.", at_least=0
    )
    early_stop: bool = option(
        True, "--no_mip_early_stop", "Stop once the sign of the bound is known.", negated=True
    )
    adv_warmup: bool = option(
        True, "--disable_adv_warmup", "Start from an attacked input.", negated=True
    )
    mip_solver: Literal["gurobi", "scip"] = option("gurobi", "--mip_solver", "Solver package.")
    topk_filter: float = option(
        1.0, "--topk_percentage", "Fraction of neurons that are refined.", at_least=0
    )
    sliding_window: int = option(
        -1, "--mip_refine_sliding_window", "Layers in one problem; -1 is all of them."
    )
    extra_constraint: bool = option(
        False, "--mip_refine_extra_input_constraints", "Add constraints at the window's start."
    )
    refine_neuron_timeout_increasement: float = option(
        0.0, "--mip_perneuron_refine_timeout_increasement", "Extra seconds per neuron and layer."
    )
    timeout_neuron_percentage: float = option(
        0.3, "--mip_timeout_neuron", "Fraction of timed-out neurons that resets the timeout."
    )
    remaining_timeout_threshold: float = option(
        1.0,
        "--mip_remaining_timeout_coefficient_for_increasement",
        "Multiple of the time left from which the timeout grows.",
    )
    remove_unstable_neurons: bool = option(
        False, "--mip_refine_remove_neurons", "Drop unstable neurons of little influence."
    )
    formulation: Literal["lp", "lp_integer", "mip"] = option(
        "mip", "--mip_formulation", "Relaxation handed to the solver."
    )
    output_cut: bool = option(
        False, "--mip_add_output_cut", "Add the output constraint to the problem."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SolverConfig(Section):
    """Bounding method and its settings."""

    SECTION: ClassVar[str] = "solver"

    batch_size: int = option(64, "--batch_size", "Subproblems bounded at a time.", at_least=1)
    auto_enlarge_batch_size: bool = option(
        True, "--no_auto_enlarge_batch_size", "Grow the batch while memory allows.", negated=True
    )
    batched_crown_auto_enlarge_max_vram_ratio: float = option(
        0.9,
        "--batched_crown_auto_enlarge_max_vram_ratio",
        "Fraction of device memory that row batches may grow to.",
        above=0,
        at_most=1,
    )
    min_batch_size_ratio: float = option(
        0.1,
        "--min_batch_size_ratio",
        "Fraction of the batch below which several layers are split at once.",
        at_least=0,
    )
    use_float64_in_last_iteration: bool = option(
        False, "--use_float64_in_last_iteration", "Repeat the last step in float64."
    )
    early_stop_patience: int = option(
        10, "--early_stop_patience", "Steps without improvement before stopping.", at_least=1
    )
    start_save_best: float = option(
        0.5,
        "--start_save_best",
        "Fraction of the steps after which best bounds are kept.",
        at_least=-1,
        at_most=1,
    )
    bound_prop_method: BoundPropMethod = option(
        "alpha-crown", "--bound_prop_method", "How bounds are propagated."
    )
    init_bound_prop_method: InitBoundPropMethod = option(
        "same", "--init_bound_prop_method", "How the first bounds are propagated."
    )
    prune_after_crown: bool = option(
        True, "--no_prune_after_crown", "Drop rows that CROWN proves.", negated=True
    )
    optimize_disjuncts_separately: bool = option(
        False, "--optimize_disjuncts_separately", "Own inner bounds for each disjunct."
    )
    build_batch_size: int = option(
        1000000, "--build_batch_size", "Instances bounded at a time.", at_least=1
    )
    skip_with_refined_bound: bool = option(
        True,
        "--no_skip_with_refined_bound",
        "Do not optimise alpha again where it is known.",
        negated=True,
    )
    forward_before_compute_bounds: bool = option(
        False, "--forward_before_compute_bounds", "Evaluate the box's centre first."
    )
    crown: CrownConfig = field(default_factory=CrownConfig)
    alpha_crown: AlphaCrownConfig = field(default_factory=AlphaCrownConfig)
    invprop: InvpropConfig = field(default_factory=InvpropConfig)
    beta_crown: BetaCrownConfig = field(default_factory=BetaCrownConfig)
    forward: ForwardConfig = field(default_factory=ForwardConfig)
    mip: MipConfig = field(default_factory=MipConfig)
