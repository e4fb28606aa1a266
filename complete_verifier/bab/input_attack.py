"""Look for counterexamples among the boxes of branch and bound.

Shape letters: B boxes, I inputs (flat).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.attack.repair import repair
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_pool import Boxes

_WALKERS = 64
_STEPS = 12
_REPAIRS = 5


class InputAttack:
    """Tries points of open boxes; every claim goes through `BabContext.try_points`."""

    def __init__(self, context: BabContext) -> None:
        self._context = context
        # Every rank moves its own, and all together as many as one rank would.
        self._walkers = context.partners.each(_WALKERS)

    def look(self, bounded: Bounded) -> Counterexample | None:
        """Try the centre of every box and the corner where its bound is attained."""
        boxes = bounded.boxes
        if boxes.count == 0:
            return None
        centres = boxes.lower / 2 + boxes.upper / 2
        points = torch.cat([centres, bounded.corners.to(centres.dtype)])
        return self._context.try_points(_array(points))

    def approach(self, boxes: Boxes) -> Counterexample | None:
        """Repair the centres that are closest to a violation; for clauses of several rows."""
        context = self._context
        if boxes.count == 0 or all(clause.num_rows < 2 for clause in context.region.clauses):
            return None
        centres = _array(boxes.lower / 2 + boxes.upper / 2)
        with torch.no_grad():
            outputs = context.network.forward(torch.from_numpy(centres)).cpu().numpy()
        nearest = np.argsort(context.region.margins(outputs), kind="stable")[: self._walkers]
        return repair(
            context.network.forward,
            context.region,
            centres[nearest],
            lambda point: context.confirm(context.region, point),
            steps=_REPAIRS,
        )

    def walk(self, boxes: Boxes) -> Counterexample | None:
        """Descend from the centres of the boxes with the smallest margins."""
        if boxes.count == 0:
            return None
        worst = boxes.margin.topk(min(self._walkers, boxes.count), largest=False).indices
        low, high = boxes.lower[worst], boxes.upper[worst]
        context = self._context
        return descend(
            context.network.forward,
            context.region,
            _array(low / 2 + high / 2),
            lambda point: context.confirm(context.region, point),
            steps=_STEPS,
            first_step=_array((high - low) / 2),
        )


def _array(points: Tensor) -> np.ndarray:
    array: np.ndarray = points.detach().cpu().numpy()
    return array
