"""Keys of the section `attack`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from complete_verifier.config.callables import NamedCallable
from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackInputSplitConfig(Section):
    """The attack before input splitting starts."""

    SECTION: ClassVar[str] = "attack.input_split"

    pgd_steps: int = option(100, "--input_split_pgd_steps", "Steps per restart.", at_least=0)
    pgd_restarts: int = option(
        30, "--input_split_pgd_restarts", "Random starting points.", at_least=0
    )
    pgd_alpha: float | Literal["auto"] = option(
        "auto", "--input_split_pgd_alpha", "Step size in input units.", above=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackInputSplitCheckAdvConfig(Section):
    """The attack on subproblems while input splitting runs."""

    SECTION: ClassVar[str] = "attack.input_split_check_adv"

    enabled: Literal["auto", "true", "false"] = option(
        "auto", "--enable_check_adv", "Attack subproblems; auto follows attack.pgd_order."
    )
    pgd_steps: int = option(
        5, "--input_split_check_adv_pgd_steps", "Steps per restart.", at_least=0
    )
    pgd_restarts: int = option(
        5, "--input_split_check_adv_pgd_restarts", "Random starting points.", at_least=0
    )
    pgd_alpha: float | Literal["auto"] = option(
        "auto", "--input_split_check_adv_pgd_alpha", "Step size in input units.", above=0
    )
    max_num_domains: int = option(
        10,
        "--input_split_check_adv_max_num_domains",
        "Subproblems attacked at a time.",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackConfig(Section):
    """The search for a counterexample by projected gradient descent (PGD)."""

    SECTION: ClassVar[str] = "attack"

    general_attack: bool = option(
        True, "--no_general_attack", "Attack specifications of any form.", negated=True
    )
    pgd_order: Literal["before", "after", "middle", "input_bab", "skip"] = option(
        "before", "--pgd_order", "When to attack, relative to the bounds; skip never attacks."
    )
    pgd_steps: int = option(100, "--pgd_steps", "Steps per restart.", at_least=0)
    pgd_restarts: int = option(30, "--pgd_restarts", "Random starting points.", at_least=1)
    pgd_batch_size: int = option(
        100000000, "--pgd_batch_size", "Starting points attacked at a time.", at_least=1
    )
    pgd_early_stop: bool = option(
        True, "--no_pgd_early_stop", "Stop at the first counterexample.", negated=True
    )
    pgd_lr_decay: float = option(
        0.99, "--pgd_lr_decay", "Factor on the step size after each step.", above=0, at_most=1
    )
    pgd_alpha: float | Literal["auto"] = option(
        "auto", "--pgd_alpha", "Step size; auto is a quarter of each input's width.", above=0
    )
    pgd_alpha_scale: bool = option(
        False, "--pgd_alpha_scale", "The step size is a fraction of each input's width."
    )
    pgd_loss_mode: Literal["hinge", "sum"] | None = option(
        None, "--pgd_loss_mode", "How the margins of several constraints become one loss."
    )
    pgd_restart_when_stuck: bool = option(
        False, "--pgd_restart_when_stuck", "Draw a new starting point where one stands still."
    )
    enable_mip_attack: bool = option(
        False, "--mip_attack", "Search with a MIP solver where PGD finds nothing."
    )
    adv_saver: NamedCallable = option(
        NamedCallable("default_adv_saver"), "--adv_saver", "Function that saves counterexamples."
    )
    adv_verifier: NamedCallable = option(
        NamedCallable("default_adv_verifier"),
        "--adv_verifier",
        "Function that checks counterexamples.",
    )
    early_stop_condition: NamedCallable = option(
        NamedCallable("default_early_stop_condition"),
        "--early_stop_condition",
        "Function that decides when the attack may stop.",
    )
    adv_example_finalizer: NamedCallable = option(
        NamedCallable("default_adv_example_finalizer"),
        "--adv_example_finalizer",
        "Function that turns an attacked input into a counterexample.",
    )
    pgd_loss: NamedCallable = option(
        NamedCallable("default_pgd_loss"), "--pgd_loss", "Function that the attack descends."
    )
    cex_path: str = option(
        "./test_cex.txt", "--cex_path", "File of the counterexample; one per instance in a batch."
    )
    attack_mode: Literal["diversed_PGD", "diversed_GAMA_PGD", "PGD", "boundary", "diverse_pgd"] = (
        option("PGD", "--attack_mode", "Kind of attack.")
    )
    attack_tolerance: float = option(
        0.0, "--attack_tolerance", "Slack granted to a counterexample.", at_least=0
    )
    attack_func: NamedCallable = option(
        NamedCallable("attack_with_general_specs"), "--attack_func", "Function that attacks."
    )
    gama_lambda: float = option(
        10.0, "--attack_gama_lambda", "Weight of the regulariser in a GAMA attack.", at_least=0
    )
    gama_decay: float = option(
        0.9, "--attack_gama_decay", "Factor on that weight after each step.", above=0
    )
    input_split: AttackInputSplitConfig = field(default_factory=AttackInputSplitConfig)
    input_split_check_adv: AttackInputSplitCheckAdvConfig = field(
        default_factory=AttackInputSplitCheckAdvConfig
    )
