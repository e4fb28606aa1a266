"""Keys of the section `bab`: branch and bound, and the time an instance may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from complete_verifier.config.bab_branching import BranchingConfig
from complete_verifier.config.bab_cut import CutConfig
from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipInputDomainConfig(Section):
    """Clipping of input boxes by the bounds' planes."""

    SECTION: ClassVar[str] = "bab.clip_n_verify.clip_input_domain"

    enabled: bool = option(False, "--enable_clip_input", "Clip input boxes.")
    clip_type: Literal["relaxed", "complete"] = option(
        "relaxed", "--clip_input_type", "One plane at a time, or all together."
    )
    clip_neuron_selection_type: Literal["ratio", "number"] = option(
        "ratio", "--clip_input_neuron_selection_type", "Meaning of the selection value."
    )
    clip_neuron_selection_value: float = option(
        -1.0, "--clip_input_neuron_selection_value", "Neurons that provide planes."
    )
    clip_iterations: int = option(1, "--clip_iterations", "Passes over the planes.", at_least=0)
    clip_calculate_volume_metrics: bool = option(
        False, "--clip_calculate_volume_metrics", "Report the volume cut away."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipIntermDomainConfig(Section):
    """Clipping of inner bounds by the bounds' planes."""

    SECTION: ClassVar[str] = "bab.clip_n_verify.clip_interm_domain"

    enabled: bool = option(False, "--enable_complete_clip", "Clip inner bounds.")
    with_input: bool = option(
        False, "--clip_interm_w_input", "Clip inner bounds and the input together."
    )
    clip_in_alpha_crown: bool = option(
        False, "--clip_in_alpha_crown", "Clip while alpha is optimised."
    )
    topk_objective: int = option(
        20, "--clip_topk_objective", "Neurons of a layer that are clipped.", at_least=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipNVerifyConfig(Section):
    """Domain clipping in branch and bound."""

    SECTION: ClassVar[str] = "bab.clip_n_verify"

    rearrange_constraints: bool = option(
        False, "--clip_constraints_rearrange", "Order the planes by their strength."
    )
    alpha_crown: bool = option(
        False, "--clip_alpha_crown", "Take the planes from optimised bounds."
    )
    clip_input_domain: ClipInputDomainConfig = field(default_factory=ClipInputDomainConfig)
    clip_interm_domain: ClipIntermDomainConfig = field(default_factory=ClipIntermDomainConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class BabAttackConfig(Section):
    """Search for counterexamples inside branch and bound."""

    SECTION: ClassVar[str] = "bab.attack"

    enabled: bool = option(False, "--enable_bab_attack", "Attack by beam search.")
    beam_candidates: int = option(8, "--beam_candidates_number", "Beam width.", at_least=1)
    beam_depth: int = option(7, "--beam_split_depth", "Splits per beam step.", at_least=0)
    max_dive_fix_ratio: float = option(
        0.8, "--max_dive_fix_ratio", "Largest fraction of fixed neurons in a dive."
    )
    min_local_free_ratio: float = option(
        0.2, "--min_local_free_ratio", "Smallest fraction of free neurons in a local search."
    )
    mip_start_iteration: int = option(
        5, "--submip_start_iteration", "Round from which small MIPs are solved."
    )
    mip_timeout: float = option(30.0, "--submip_timeout", "Seconds per small MIP.", at_least=0)
    adv_pool_threshold: float | None = option(
        None, "--adv_pool_threshold", "Least difference of inputs in the pool; null chooses."
    )
    refined_mip_attacker: bool = option(
        False, "--refined_mip_attacker", "Refine inner bounds for small MIPs."
    )
    refined_batch_size: int | None = option(
        None, "--refined_batch_size", "Problems refined at a time.", at_least=1
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class BabConfig(Section):
    """Branch and bound."""

    SECTION: ClassVar[str] = "bab"

    max_domains: float = option(
        float("inf"), "--max_domains", "Most subproblems before giving up.", at_least=0
    )
    decision_thresh: float = option(
        0.0,
        "--decision_thresh",
        "Value that a row's lower bound must exceed to be proven.",
        at_least=0,
    )
    timeout: float = option(360.0, "--timeout", "Seconds per instance.", above=0)
    timeout_scale: float = option(
        1.0, "--timeout_scale", "Factor on every timeout, the batch's own included.", above=0
    )
    max_iterations: int = option(-1, "--max_iterations", "Most rounds; -1 is no limit.")
    override_timeout: float | None = option(
        None, "--override_timeout", "Seconds that replace every other timeout.", above=0
    )
    pruning_in_iteration: bool = option(
        True,
        "--disable_pruning_in_iteration",
        "Drop subproblems as soon as they are proven.",
        negated=True,
    )
    pruning_in_iteration_ratio: float = option(
        0.2, "--pruning_in_iteration_ratio", "Fraction proven from which they are dropped."
    )
    sort_targets: bool = option(False, "--sort_targets", "Verify hard labels first.")
    batched_domain_list: bool = option(
        True, "--disable_batched_domain_list", "Keep subproblems as tensors.", negated=True
    )
    optimized_interm: str = option(
        "", "--optimized_interm", "Layers, comma separated, bounded again in every round."
    )
    recompute_interm: bool = option(
        False, "--recompute_interm", "Bound all inner layers again in every round."
    )
    sort_domain_interval: int = option(
        -1,
        "--sort_domain_interval",
        "Rounds between two sorts of a depth-first pool by bounds; -1 is never.",
    )
    vanilla_crown: bool = option(False, "--vanilla_crown_bab", "Do not optimise in rounds.")
    tree_traversal: Literal["depth_first", "breadth_first"] = option(
        "depth_first", "--tree_traversal", "Which subproblems are split next."
    )
    hugetensor_allocator: bool = option(
        True, "--disable_hugetensor_allocator", "Reserve pools as huge tensors.", negated=True
    )
    force_synchronous: bool = option(
        False, "--force_synchronous", "Same work and same bits at every world size."
    )
    tile_size: int = option(
        128,
        "--tile_size",
        "Subproblems bounded at a time under force_synchronous, a multiple of 16.",
        at_least=16,
    )
    cut: CutConfig = field(default_factory=CutConfig)
    clip_n_verify: ClipNVerifyConfig = field(default_factory=ClipNVerifyConfig)
    branching: BranchingConfig = field(default_factory=BranchingConfig)
    attack: BabAttackConfig = field(default_factory=BabAttackConfig)
