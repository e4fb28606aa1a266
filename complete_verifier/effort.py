"""How an instance is worked on: the config's budgets for attack and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from auto_LiRPA_patches.engine.graph import Graph
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.refinement import RefinePass
from complete_verifier.bab.settings import (
    bab_settings,
    input_split_settings,
    refine_passes,
    splits_inputs,
)
from complete_verifier.bounds.settings import BoundSettings, bound_settings
from complete_verifier.config import Config


@dataclass(frozen=True)
class Effort:
    """Budgets of one instance.

    Attributes:
        order: `attack.pgd_order`: before, after or skip.
        attack: budget of the attack.
        bounds: method and effort of the bounds; also of the root where branching starts.
        incomplete: whether bounds may decide before branching
            (`general.enable_incomplete_verification`).
        branching: effort of branch and bound; None for `complete_verifier: skip`.
        refinements: what comes between runs of branch and bound of a network (`bab-refine`).
        input_split: how input boxes are split, where they are.
        splits_inputs: whether they are, for a number of inputs and whether activations can be
            split too.
        alpha_share: fraction of the time left that bounds may take (`alpha-crown.max_time`).
        seed: of the attack, the same for every instance.
    """

    order: str
    attack: AttackSettings
    bounds: BoundSettings
    incomplete: bool
    branching: BabSettings | None
    refinements: Callable[[Graph], tuple[RefinePass, ...]]
    input_split: InputSplitSettings
    splits_inputs: Callable[[int, bool], bool]
    alpha_share: float
    seed: int


def effort(config: Config) -> Effort:
    """The budgets that a resolved config states."""
    return Effort(
        order=config.attack.pgd_order,
        attack=AttackSettings.from_config(config.attack),
        bounds=bound_settings(config),
        incomplete=config.general.enable_incomplete_verification,
        branching=None if config.general.complete_verifier == "skip" else bab_settings(config),
        refinements=lambda graph: refine_passes(config, graph),
        input_split=input_split_settings(config),
        splits_inputs=lambda inputs, other: splits_inputs(config, inputs, activations_too=other),
        alpha_share=config.solver.alpha_crown.max_time,
        seed=config.general.seed,
    )
