"""Keys of the section `bab.branching`: what is split, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchingPointConfig(Section):
    """Split points computed in advance for non-ReLU activations."""

    SECTION: ClassVar[str] = "bab.branching.nonlinear_split.branching_point"

    db_path: str = option("branching_points.pt", "--branching_point_db", "File that keeps them.")
    num_iterations: int = option(
        1000, "--branching_point_num_iterations", "Optimisation steps.", at_least=0
    )
    batch_size: int = option(
        1000000, "--branching_point_batch_size", "Points optimised at a time.", at_least=1
    )
    range_l: float = option(-5.0, "--branching_point_range_l", "Left end of the range.")
    range_u: float = option(5.0, "--branching_point_range_u", "Right end of the range.")
    log_interval: int = option(
        100, "--branching_point_log_interval", "Steps between two lines of progress.", at_least=1
    )
    step_size_1d: float = option(
        0.01, "--branching_point_step_size_1d", "Grid step with one input.", above=0
    )
    step_size: float = option(
        0.2, "--branching_point_step_size", "Grid step with several inputs.", above=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NonlinearSplitConfig(Section):
    """Splitting of activations other than ReLU."""

    SECTION: ClassVar[str] = "bab.branching.nonlinear_split"

    method: Literal["bbps", "babsr-like"] = option(
        "bbps", "--nonlinear_split_method", "Heuristic that chooses the neuron."
    )
    disable: bool = option(False, "--disable_nonlinear_split", "Split ReLUs only.")
    branching_point_method: Literal["uniform", "opt"] = option(
        "uniform", "--branching_point_method", "Split in the middle or at computed points."
    )
    num_branches: int = option(2, "--nonlinear_branches", "Parts per split.", at_least=2)
    filter: bool = option(False, "--nonlinear_split_filtering", "Try candidates by bounding.")
    filter_beta: bool = option(
        False, "--nonlinear_split_filtering_beta", "Optimise beta while trying."
    )
    filter_clamp: bool = option(
        False, "--nonlinear_split_filtering_clamp", "Cut scores off at zero while trying."
    )
    filter_batch_size: int = option(
        10000, "--filter_batch_size", "Candidates tried at a time.", at_least=1
    )
    filter_iterations: int = option(
        25, "--filter_iterations", "Optimisation steps while trying.", at_least=0
    )
    relu_only: bool = option(False, "--nonlinear_split_relu_only", "Score ReLUs only.")
    loose_tanh_threshold: float | None = option(
        None, "--loose_tanh_threshold", "Input bound from which tanh uses another relaxation."
    )
    branching_point: BranchingPointConfig = field(default_factory=BranchingPointConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSplitConfig(Section):
    """Splitting of the input box instead of activations."""

    SECTION: ClassVar[str] = "bab.branching.input_split"

    split_hint: tuple[float, ...] | None = option(
        None, "--split_hint", "Input values at which to split."
    )
    enable: bool = option(False, "--enable_input_split", "Split inputs, not activations.")
    reorder_bab: bool = option(False, "--reorder_bab", "Bound, split and clip in this order.")
    input_dim_threshold: int = option(
        20, "--input_split_input_dim_threshold", "Inputs up to which auto splits them."
    )
    adv_check: int = option(
        0, "--input_split_adv_check", "Subproblems visited before attacks start; -1 is never."
    )
    split_partitions: int = option(
        2, "--input_split_partitions", "Parts per split input.", at_least=2
    )
    sb_margin_weight: float = option(
        1.0, "--sb_margin_weight", "Weight of the margin in the smart score."
    )
    sb_sum: bool = option(False, "--sb_sum", "Sum the smart score over all rows.")
    sb_primary_spec: int | None = option(
        None, "--sb_primary_spec", "Row that the smart score looks at."
    )
    bf_backup_thresh: float = option(
        -1.0, "--bf_backup_thresh", "Brute-force score below which the smart one is used."
    )
    bf_rhs_offset: float = option(
        0.0, "--bf_rhs_offset", "Offset on thresholds in the brute-force score."
    )
    bf_iters: float = option(1e9, "--bf_iters", "Rounds that use the brute-force score.")
    bf_batch_size: int = option(
        100000, "--bf_batch_size", "Subproblems per round of brute force.", at_least=1
    )
    bf_zero_crossing_score: bool = option(
        False, "--bf_zero_crossing_score", "Score the rows that change sign."
    )
    touch_zero_score: float = option(
        0.0, "--touch_zero_score", "Score of an input that touches zero."
    )
    ibp_enhancement: bool = option(
        True, "--no_ibp_enhancement", "Intersect with interval bounds.", negated=True
    )
    compare_with_old_bounds: bool = option(
        True,
        "--no_compare_input_split_with_old_bounds",
        "Keep the parent's bound where it is better.",
        negated=True,
    )
    update_rhs_with_attack: bool = option(
        False, "--input_split_update_rhs_with_attack", "Move thresholds to attacked values."
    )
    sb_coeff_thresh: float = option(
        0.001, "--sb_coeff_thresh", "Smallest coefficient in the smart score.", at_least=0
    )
    sort_index: int | None = option(
        None, "--input_split_sort_index", "Output that sorts the subproblems."
    )
    sort_descending: bool = option(
        True, "--no_input_split_sort_descending", "Sort from large to small.", negated=True
    )
    show_progress: bool = option(False, "--input_split_show_progress", "Print progress.")
    presplit_domains: str | None = option(
        None, "--input_split_presplit_domains", "File of boxes split in advance."
    )
    skip_getting_worst_domain: bool = option(
        False, "--input_split_skip_getting_worst_domain", "Do not look for the worst box."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchingConfig(Section):
    """Choice of the neuron or input to split."""

    SECTION: ClassVar[str] = "bab.branching"

    method: Literal[
        "babsr",
        "fsb",
        "kfsb",
        "kfsb-intercept-only",
        "random",
        "intercept",
        "naive",
        "sb",
        "nonlinear",
        "brute-force",
    ] = option("kfsb", "--branching_method", "Heuristic that chooses what to split.")
    candidates: int = option(
        3, "--branching_candidates", "Candidates tried by fsb and kfsb.", at_least=1
    )
    reduceop: Literal["min", "max", "mean", "auto"] = option(
        "min", "--branching_reduceop", "How the scores of two children become one."
    )
    enable_intermediate_bound_opt: bool = option(
        False, "--enable_intermediate_bound_opt", "Optimise inner bounds while branching."
    )
    branching_input_and_activation: bool = option(
        False, "--branching_input_and_activation", "Alternate input and activation splits."
    )
    branching_input_and_activation_order: tuple[str, ...] = option(
        ("input", "relu"), "--branching_input_and_activation_order", "Order of the two kinds."
    )
    branching_input_iterations: int = option(
        30, "--branching_input_iterations", "Rounds of input splits in turn.", at_least=0
    )
    branching_relu_iterations: int = option(
        50, "--branching_relu_iterations", "Rounds of activation splits in turn.", at_least=0
    )
    nonlinear_split: NonlinearSplitConfig = field(default_factory=NonlinearSplitConfig)
    input_split: InputSplitConfig = field(default_factory=InputSplitConfig)
