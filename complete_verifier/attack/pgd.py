"""Projected gradient descent for a counterexample in one region.

A point is reported only if the network's outputs at it satisfy a clause; whether it *is* a
counterexample is for `confirm` to say. Nothing here can make a verdict `unsat`.

Under several ranks every rank runs the same search: all decisions follow from the network's
outputs, `generator`, `out_of_time` and `accept`, which must be equal on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.settings import AttackSettings, StartMode
from complete_verifier.attack.walk import Walk
from complete_verifier.specification import Clause, Region

Forward = Callable[[Tensor], Tensor]
"""[B, I] float32 -> [B, O], differentiable in its argument."""

# A replay may load the network again; a search whose points keep failing it is not worth more.
_MOST_REFUSALS = 16
_MOST_STATE_NUMBERS = 32_000_000  # float64 numbers per state tensor, 256 MB


@dataclass(frozen=True, eq=False)
class AttackResult:
    """What the attack on one region found."""

    candidate: np.ndarray | None
    """[I] float32, inside the region's `SearchBox` and accepted; None if there is none."""

    best_margin: float
    """Smallest worst-row `coefficients @ y - rhs` met over all clauses; inf if none was finite."""

    steps_done: int
    """Gradient steps taken, summed over the batches the restarts were cut into."""

    out_of_time: bool = False
    """Whether the clock ended the search."""


def never() -> bool:
    """Serve as an `out_of_time` without limit."""
    return False


def pgd_attack(
    forward: Forward,
    region: Region,
    settings: AttackSettings,
    generator: torch.Generator,
    *,
    out_of_time: Callable[[], bool] = never,
    accept: Callable[[np.ndarray], bool] | None = None,
    device: torch.device | None = None,
) -> AttackResult:
    """Search `region` for an input whose outputs satisfy one of its clauses.

    Args:
        forward: the network, on `device`.
        generator: a CPU generator; the same state gives the same search.
        out_of_time: asked before every step; True ends the search.
        accept: asked about each candidate ([I] float32). A refused one is dropped and the search
            goes on for a point with a smaller margin, as a replay elsewhere rounds differently.
            None accepts everything.
        device: where the moving points live; None is the CPU.
    """
    box = SearchBox.of(region)
    if box is None or not region.clauses:
        return AttackResult(candidate=None, best_margin=math.inf, steps_done=0)
    gate = _Gate(accept)
    best_margin, steps_done, ended = math.inf, 0, False
    for clauses, restarts in _batches(region, settings):
        walk = Walk(forward, box, clauses, restarts, settings, generator, device)
        ended = _run(walk, settings, gate, out_of_time)
        best_margin = min(best_margin, walk.best_margin)
        steps_done += walk.steps_done
        if ended or gate.finished(settings):
            break
    return AttackResult(gate.accepted, best_margin, steps_done, out_of_time=ended)


def _run(
    walk: Walk, settings: AttackSettings, gate: _Gate, out_of_time: Callable[[], bool]
) -> bool:
    """Walk until accepted, done, or out of time; the last is what is returned."""
    diversifying = settings.start_mode is StartMode.DIVERSIFIED
    for _ in range(walk.prepare(diversifying)):
        if out_of_time():
            return True
        walk.diversify()
    for index in range(settings.steps + 1):
        if out_of_time():
            return True
        found = walk.look()
        if found is not None:
            gate.offer(*found)
            if gate.finished(settings):
                return False
        if index < settings.steps:
            walk.step()
    return False


def _batches(region: Region, settings: AttackSettings) -> Iterator[tuple[Sequence[Clause], int]]:
    """Cut clauses x restarts into batches: whole clauses together, else one clause in rounds."""
    num_numbers = max(1, region.num_inputs, region.clauses[0].num_outputs)
    most_points = max(1, min(settings.batch_size, _MOST_STATE_NUMBERS // num_numbers))
    if most_points >= settings.restarts:
        count = most_points // settings.restarts
        for first in range(0, len(region.clauses), count):
            yield region.clauses[first : first + count], settings.restarts
        return
    for clause in region.clauses:
        for first in range(0, settings.restarts, most_points):
            yield (clause,), min(most_points, settings.restarts - first)


class _Gate:
    """Hands candidates to `accept` and keeps the first accepted one."""

    def __init__(self, accept: Callable[[np.ndarray], bool] | None) -> None:
        self._accept = accept
        self._refused_margin = math.inf
        self._num_refused = 0
        self.accepted: np.ndarray | None = None

    def finished(self, settings: AttackSettings) -> bool:
        """Whether the search has what it came for."""
        return self.accepted is not None and settings.early_stop

    def offer(self, point: np.ndarray, margin: float) -> None:
        """Ask about `point` unless one is held, or a point at least as good was refused."""
        if self.accepted is not None or self._num_refused >= _MOST_REFUSALS:
            return
        if self._num_refused and margin >= self._refused_margin:
            return
        if self._accept is None or self._accept(point):
            self.accepted = point
        else:
            self._refused_margin = margin
            self._num_refused += 1
