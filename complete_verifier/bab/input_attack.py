"""Look for counterexamples among the boxes of branch and bound.

Shape letters: P points, I inputs (flat), K constraints, C clauses.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_bounds import Bounded, InputBounds
from complete_verifier.bab.input_pool import Boxes

_WALKERS = 64
_STEPS = 12


class InputAttack:
    """Tries points of open boxes; every claim goes through `BabContext.try_points`."""

    def __init__(self, context: BabContext, bounds: InputBounds, region: Boxes) -> None:
        """Prepare.

        Args:
            region: the whole region as one box.
        """
        self._context = context
        self._bounds = bounds
        self._region = region

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
        points, step = low / 2 + high / 2, (high - low) / 2
        for _ in range(_STEPS):
            gradient = self._gradient(points)
            moved = points - step * gradient.sign()
            points = torch.minimum(torch.maximum(moved, self._region.lower), self._region.upper)
            found = self._context.try_points(_array(points))
            if found is not None:
                return found
            step = step * 0.75
        return None

    def _gradient(self, points: Tensor) -> Tensor:
        """``[P, I]`` gradient of each point's margin: the least clause's worst constraint."""
        bounds = self._bounds
        leaf = points.detach().requires_grad_(True)
        shape = (leaf.shape[0], *bounds.graph.input_shape)
        with torch.enable_grad():
            outputs = bounds.graph.forward(leaf.view(shape)).flatten(1)
            margins = (outputs @ bounds.matrix.T)[:, bounds.row_of].double() - bounds.rhs
            clauses = margins.new_full((leaf.shape[0], bounds.rows.num_clauses), -torch.inf)
            places = bounds.clause_of.expand_as(margins)
            worst = clauses.scatter_reduce(1, places, margins, "amax")
            (gradient,) = torch.autograd.grad(worst.amin(dim=1).sum(), leaf)
        return torch.nan_to_num(gradient)


def _array(points: Tensor) -> np.ndarray:
    array: np.ndarray = points.detach().cpu().numpy()
    return array
