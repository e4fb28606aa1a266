"""Time the phases of branch and bound from outside, by wrapping the functions that do them."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from complete_verifier.bab import activation, input_split
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_bounds import InputBounds
from complete_verifier.bab.input_pool import BoxPool
from complete_verifier.bab.pool import DomainPool
from complete_verifier.bab.tree_attack import TreeAttack

REST = "rest"


@dataclass(frozen=True)
class Watched:
    """A function, by the class or module that holds it, and the phase its time belongs to."""

    owner: Any
    name: str
    phase: str


# What a scoring pass or a candidate costs is branching, although it computes bounds.
ACTIVATION_PHASES = (
    Watched(Bounding, "optimize", "bounding"),
    Watched(activation, "look", "branching"),
    Watched(activation._Tree, "_split", "branching"),
    Watched(activation, "decide_leaf", "leaves"),
    Watched(DomainPool, "add", "pool"),
    Watched(DomainPool, "take", "pool"),
    Watched(BabContext, "try_points", "attack"),
    Watched(TreeAttack, "look", "attack"),
)
INPUT_PHASES = (
    Watched(InputBounds, "bound", "bounding"),
    Watched(input_split, "children", "branching"),
    Watched(InputAttack, "look", "attack"),
    Watched(InputAttack, "walk", "attack"),
    Watched(BoxPool, "add", "pool"),
    Watched(BoxPool, "take", "pool"),
)


class PhaseTimer:
    """Wall seconds per phase; each moment belongs to the innermost watched call.

    Attributes:
        seconds: by phase, `REST` included, which is all of the block that no phase claims.
        pool_bytes: the largest size of a pool.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Count with `clock`, seconds."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.pool_bytes = 0
        self._clock = clock
        self._phases = [REST]
        self._last = 0.0

    @contextmanager
    def watch(self, watched: Sequence[Watched]) -> Iterator[None]:
        """Time `watched` within the block; afterwards the functions are as they were."""
        originals = [getattr(item.owner, item.name) for item in watched]
        for item, original in zip(watched, originals, strict=True):
            setattr(item.owner, item.name, self._timed(original, item.phase))
        self._last = self._clock()
        try:
            yield
        finally:
            self._charge()
            for item, original in zip(watched, originals, strict=True):
                setattr(item.owner, item.name, original)

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._charge()
            self._phases.append(phase)
            try:
                return function(*arguments, **named)
            finally:
                self._charge()
                self._phases.pop()
                if phase == "pool":
                    self.pool_bytes = max(self.pool_bytes, arguments[0].num_bytes)

        return timed

    def _charge(self) -> None:
        now = self._clock()
        self.seconds[self._phases[-1]] += now - self._last
        self._last = now
