"""Attack a whole specification, region by region, until a counterexample is confirmed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.pgd import Forward, never, pgd_attack
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.specification import Region, Specification

Confirm = Callable[[Region, np.ndarray], Counterexample | None]
"""(region, candidate [I] float32) -> the counterexample it is, or None; see `confirm`."""


@dataclass(frozen=True, eq=False)
class SpecificationAttack:
    """What the attack on all regions found."""

    counterexample: Counterexample | None
    region_index: int | None
    """The region it violates; None without a counterexample."""

    best_margin: float
    """Smallest worst-row margin met over all regions tried; inf if none was finite."""

    steps_done: int
    out_of_time: bool
    """Whether the clock ended the search before all regions were tried."""


def attack_specification(
    forward: Forward,
    specification: Specification,
    settings: AttackSettings,
    seed: int,
    confirm: Confirm,
    *,
    out_of_time: Callable[[], bool] = never,
    device: torch.device | None = None,
) -> SpecificationAttack:
    """Attack each region in turn and return the first confirmed counterexample.

    Under several ranks `confirm` and `out_of_time` must give every rank the same answer; the
    simplest is to ask one rank and broadcast.

    Args:
        forward: [B, I] float32 -> [B, O], differentiable, on `device`.
        seed: the same seed gives the same search, on every rank and device but for rounding.
        confirm: decides about a candidate; one it refuses is dropped and the search goes on.
        out_of_time: asked before every step.
    """
    generator = torch.Generator().manual_seed(seed)
    best_margin, steps_done = math.inf, 0
    for index, region in enumerate(specification.regions):
        keeper = _Keeper(confirm, region)
        result = pgd_attack(
            forward,
            region,
            settings,
            generator,
            out_of_time=out_of_time,
            accept=keeper.accept,
            device=device,
        )
        best_margin = min(best_margin, result.best_margin)
        steps_done += result.steps_done
        if keeper.confirmed is not None or result.out_of_time:
            found = None if keeper.confirmed is None else index
            return SpecificationAttack(
                keeper.confirmed, found, best_margin, steps_done, result.out_of_time
            )
    return SpecificationAttack(None, None, best_margin, steps_done, out_of_time=False)


class _Keeper:
    """Answers `accept` for one region and keeps what was confirmed."""

    def __init__(self, confirm: Confirm, region: Region) -> None:
        self._confirm = confirm
        self._region = region
        self.confirmed: Counterexample | None = None

    def accept(self, candidate: np.ndarray) -> bool:
        """Whether `candidate` is a counterexample."""
        self.confirmed = self._confirm(self._region, candidate)
        return self.confirmed is not None
