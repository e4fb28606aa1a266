"""Keys of the section `bab.cut`: cutting planes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from complete_verifier.config.option import JsonText, Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiTreeBranchingConfig(Section):
    """Several trees searched at once."""

    SECTION: ClassVar[str] = "bab.cut.biccos.multi_tree_branching"

    enabled: bool = option(False, "--multi_tree_branching", "Grow several trees first.")
    restore_best_tree: bool = option(
        True,
        "--multi_tree_branching_disable_restore_best_tree",
        "Go on with the best tree.",
        negated=True,
    )
    keep_n_best_domains: int = option(
        50, "--multi_tree_branching_keep_n_best_domains", "Subproblems kept.", at_least=1
    )
    target_batch_size: int = option(
        200, "--multi_tree_branching_target_batch_size", "Subproblems per round.", at_least=1
    )
    iterations: int = option(3, "--multi_tree_branching_iterations", "Rounds.", at_least=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BiccosConfig(Section):
    """Cuts inferred from proven subproblems."""

    SECTION: ClassVar[str] = "bab.cut.biccos"

    enabled: bool = option(False, "--biccos_cuts", "Infer cuts from proven subproblems.")
    auto_param: bool = option(
        True, "--biccos_disable_auto_param", "Choose the settings by network size.", negated=True
    )
    drop_ratio: float = option(
        0.5, "--biccos_drop_ratio", "Fraction of split neurons dropped.", at_least=0, at_most=1
    )
    max_infer_iter: int = option(
        20, "--biccos_max_infer_iter", "Rounds in which cuts are inferred."
    )
    max_domain: float = option(
        10000.0, "--biccos_max_domain", "Subproblems beyond which none are inferred."
    )
    heuristic: Literal["neuron_influence_score", "random_drop", "sparse_opt", "None"] = option(
        "neuron_influence_score", "--biccos_dropping_heuristics", "Which neurons are dropped."
    )
    save_cuts: bool = option(False, "--biccos_save_cuts", "Write the cuts to a file.")
    multi_tree_branching: MultiTreeBranchingConfig = field(default_factory=MultiTreeBranchingConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class CutConfig(Section):
    """Cutting planes in branch and bound."""

    SECTION: ClassVar[str] = "bab.cut"

    enabled: bool = option(False, "--enable_cut", "Use cutting planes.")
    cuts_path: str | None = option(None, "--cuts_path", "Folder for the solver's cuts.")
    bab_cut: bool = option(False, "--enable_bab_cut", "Use cuts in every round.")
    lr: float = option(0.01, "--lr_cuts", "Learning rate of the cuts.", at_least=0)
    lr_decay: float = option(1.0, "--cut_lr_decay", "Factor on that rate per step.", above=0)
    iteration: int = option(100, "--cut_iteration", "Optimisation steps.")
    bab_iteration: int = option(
        -1, "--cut_bab_iteration", "Steps per round; -1 is as many as without cuts."
    )
    lr_beta: float = option(0.02, "--cut_lr_beta", "Learning rate of beta.", at_least=0)
    number_cuts: int = option(50, "--number_cuts", "Most cuts added.", at_least=0)
    topk_cuts_in_filter: int = option(
        1000, "--topk_implication", "Cuts that survive the filter.", at_least=0
    )
    batch_size_primal: int = option(
        100, "--batch_size_primal", "Primal values computed at a time.", at_least=1
    )
    max_num: int = option(1000000000, "--cut_max_num", "Most cuts in all.", at_least=0)
    patches_cut: bool = option(
        False, "--enable_patches_cut", "Cuts for inner bounds in patches mode."
    )
    cplex_cuts: bool = option(False, "--cplex_cuts", "Let CPLEX find the cuts.")
    cplex_cuts_wait: float = option(
        0.0, "--cplex_cuts_wait", "Seconds to wait for the first cuts.", at_least=0
    )
    cplex_cuts_revpickup: bool = option(
        True, "--no_cplex_cuts_revpickup", "Take subproblems in reverse order.", negated=True
    )
    cut_reference_bounds: bool = option(
        True, "--no_cut_reference_bounds", "Use reference bounds with cuts.", negated=True
    )
    fix_intermediate_bounds: bool = option(
        False, "--fix_cut_intermediate_bounds", "Keep inner bounds fixed with cuts."
    )
    manual_cuts: JsonText | None = option(None, "--manual_cuts", "Cuts given by hand.")
    biccos: BiccosConfig = field(default_factory=BiccosConfig)
