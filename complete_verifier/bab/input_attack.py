"""Look for counterexamples among the boxes of branch and bound.

Shape letters: B boxes, I inputs (flat).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_pool import Boxes

_WALKERS = 64
_STEPS = 12


class InputAttack:
    """Tries points of open boxes; every claim goes through `BabContext.try_points`."""

    def __init__(self, context: BabContext) -> None:
        self._context = context

    def look(self, bounded: Bounded) -> Counterexample | None:
        """Try the centre of every box and the corner where its bound is attained."""
        boxes = bounded.boxes
        if boxes.count == 0:
            return None
        centres = boxes.lower / 2 + boxes.upper / 2
        points = torch.cat([centres, bounded.corners.to(centres.dtype)])
        return self._context.try_points(_array(points))

    def walk(self, boxes: Boxes) -> Counterexample | None:
        """Descend from the centres of the boxes with the smallest margins."""
        if boxes.count == 0:
            return None
        worst = boxes.margin.topk(min(_WALKERS, boxes.count), largest=False).indices
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
