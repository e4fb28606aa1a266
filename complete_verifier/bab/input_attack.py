"""Look for counterexamples among the boxes of branch and bound.

Shape letters: B boxes, I inputs (flat).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.attack.repair import repair
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_pool import Boxes
from complete_verifier.bab.region_group import RegionGroup

_WALKERS = 64
_STEPS, _DECAY = 6, 0.5
_REPAIRS = 5


class InputAttack:
    """Tries points of open boxes; every claim goes through `BabContext.try_points`."""

    def __init__(self, context: BabContext, group: RegionGroup) -> None:
        """Prepare.

        Args:
            context: the run; its own region is of no account.
            group: the regions that boxes are of.
        """
        self._group = group
        self._contexts = [context.about(region) for region in group.regions]
        # Every rank moves its own, and all together as many as one rank would.
        self._walkers = context.partners.each(_WALKERS)
        self._walks = 0

    def _by_region(self, boxes: Boxes) -> Iterator[tuple[BabContext, Tensor]]:
        """The regions that boxes are of, and the places of each one's."""
        if boxes.count == 0:
            return
        number = self._group.region_of(boxes)
        for region in number.unique().tolist():
            yield self._contexts[region], (number == region).nonzero().squeeze(1)

    def look(self, bounded: Bounded) -> Counterexample | None:
        """Try the centre of every box and the corner where its bound is attained."""
        boxes = bounded.boxes
        centres = boxes.lower / 2 + boxes.upper / 2
        corners = bounded.corners.to(centres.dtype)
        for context, own in self._by_region(boxes):
            found = context.try_points(_array(torch.cat([centres[own], corners[own]])))
            if found is not None:
                return found
        return None

    def approach(self, boxes: Boxes) -> Counterexample | None:
        """Repair the centres that are closest to a violation; for clauses of several rows."""
        for context, own in self._by_region(boxes):
            if any(clause.num_rows > 1 for clause in context.region.clauses):
                found = self._repaired(context, boxes.select(own))
                if found is not None:
                    return found
        return None

    def _repaired(self, context: BabContext, boxes: Boxes) -> Counterexample | None:
        """A repaired centre of one region's boxes."""
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
        """Descend from the centres of the boxes with the smallest margins.

        One region at a time, each in turn: as many steps of few walkers take as long as of many.
        """
        present = list(self._by_region(boxes))
        if not present:
            return None
        context, own = present[self._walks % len(present)]
        self._walks += 1
        margin = boxes.margin[own]
        worst = own[margin.topk(min(self._walkers, margin.numel()), largest=False).indices]
        low, high = boxes.lower[worst], boxes.upper[worst]
        return descend(
            context.network.forward,
            context.region,
            _array(low / 2 + high / 2),
            lambda point: context.confirm(context.region, point),
            steps=_STEPS,
            first_step=_array((high - low) / 2),
            decay=_DECAY,
        )


def _array(points: Tensor) -> np.ndarray:
    array: np.ndarray = points.detach().cpu().numpy()
    return array
