"""Look for counterexamples among the points that branch and bound meets."""

from __future__ import annotations

import numpy as np

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.bab.context import BabContext

_WALKERS = 64
_STEPS = 10


def is_due(rounds: int, period: int) -> bool:
    """Whether points are moved in this round: 0, 1, 2, 4, 8, … and every `period`-th."""
    return rounds & (rounds - 1) == 0 or rounds % period == 0


class TreeAttack:
    """Tries the inputs at which a batch's bounds are attained; moves the best of them now and then.

    An attack changes neither the subproblems nor their order: it only ends the run.
    """

    def __init__(self, context: BabContext, period: int = 16) -> None:
        """Prepare.

        Args:
            period: see `is_due`.
        """
        self._context = context
        self._period = period

    def look(
        self, points: np.ndarray, rounds: int, *, may_move: bool = True
    ) -> Counterexample | None:
        """Try ``points [n, num_inputs]`` of the round with this number.

        Args:
            may_move: whether the best are moved, if it is due.
        """
        context = self._context
        finds = context.finds()
        # Every rank moves its own, and all together as many as one rank would.
        inside, margins = context.closest(points, context.partners.each(_WALKERS))
        if (margins[:1] <= 0).any() and finds.accept(inside[0]) is not None:
            return finds.first
        if may_move and is_due(rounds, self._period):
            descend(context.network.forward, context.region, inside, finds.accept, steps=_STEPS)
        return finds.first
