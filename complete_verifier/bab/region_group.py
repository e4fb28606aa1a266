"""Regions that one pool of input boxes serves.

A property of several regions is decided region by region, but a small tree is mostly rounds of few
boxes, which take as long as rounds of many. So regions are searched together: every box keeps from
its root the region it is of, and the clauses that are not that region's count as excluded in it.

Shape letters: R regions, C distinct clauses of all together, B boxes, I inputs (flat).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab.input_pool import Boxes, root_boxes
from complete_verifier.bounds.input_box import input_box
from complete_verifier.specification import Clause, Region

_PATH_BITS = 62
# Every box has a plane per constraint of all regions: beyond so many numbers these would take a
# part of the time that counts (a layer of ACAS Xu has 2 500 per box). And what is tried of points
# is tried per region.
_MOST_SLOPES = 512
_MOST_REGIONS = 64


@dataclass(frozen=True, eq=False)
class RegionGroup:
    """Regions with points, their distinct clauses, and which are whose.

    Attributes:
        regions: R regions.
        clauses: C clauses, by their bounds in float64: what a proof rests on.
        foreign: ``[R, C]`` bool, clauses that are not a region's own.
    """

    regions: tuple[Region, ...]
    clauses: tuple[Clause, ...]
    foreign: np.ndarray

    @staticmethod
    def of(regions: Sequence[Region]) -> RegionGroup:
        """These regions together; those that hold no unsafe point are left out."""
        regions = _with_points(regions)
        distinct = {_content(clause): clause for region in regions for clause in region.clauses}
        number = {content: place for place, content in enumerate(distinct)}
        foreign = np.ones((len(regions), len(distinct)), dtype=bool)
        for place, region in enumerate(regions):
            foreign[place, [number[_content(clause)] for clause in region.clauses]] = False
        return RegionGroup(tuple(regions), tuple(distinct.values()), foreign)

    @property
    def _bits(self) -> int:
        """Bits of a path that say which region it is of."""
        return max(0, len(self.regions) - 1).bit_length()

    def box(self, graph: Graph) -> Interval:
        """The regions' boxes in the network's precision, ``[R, *input_shape]``; balls left out."""
        boxes = [input_box(graph, region) for region in self.regions]
        return Interval(
            torch.cat([box.lower for box in boxes]), torch.cat([box.upper for box in boxes])
        )

    def roots(self, box: Interval, period: int) -> Boxes:
        """Each region as one subproblem.

        Args:
            box: as `box` gives it.
            period: the roots' depth is a multiple of this, from which on paths tell splits.
        """
        foreign = torch.from_numpy(self.foreign).to(box.lower.device)
        parts = zip(box.lower.flatten(1), box.upper.flatten(1), foreign, strict=True)
        roots = Boxes.concatenate([root_boxes(*part) for part in parts])
        number = torch.arange(roots.count, device=roots.path.device)
        return replace(
            roots,
            path=number << (_PATH_BITS - self._bits),
            key=number + 1,
            depth=torch.full_like(roots.depth, -(-self._bits // period) * period),
        )

    def region_of(self, boxes: Boxes) -> Tensor:
        """``[B]`` the number of the region that each box is a part of."""
        return boxes.path >> (_PATH_BITS - self._bits)


def region_groups(regions: Iterable[Region]) -> list[RegionGroup]:
    """Regions in order, as many together as are worth it; those with no unsafe point left out.

    A region in which every output is unsafe is alone: there is nothing to search.
    """
    groups: list[list[Region]] = []
    known: dict[tuple[bytes, ...], int] = {}
    for region in _with_points(regions):
        own = {_content(clause): clause.num_rows for clause in region.clauses}
        union = {**known, **own}
        few = sum(union.values()) * region.num_inputs <= _MOST_SLOPES or len(union) == len(known)
        if groups and few and all(union.values()) and len(groups[-1]) < _MOST_REGIONS:
            groups[-1].append(region)
            known = union
        else:
            groups.append([region])
            known = own
    return [RegionGroup.of(group) for group in groups]


def _with_points(regions: Iterable[Region]) -> list[Region]:
    """The regions that may hold an unsafe point."""
    return [region for region in regions if region.clauses and not region.is_empty]


def _content(clause: Clause) -> tuple[bytes, ...]:
    return clause.coefficients.tobytes(), clause.rhs.tobytes(), clause.strict.tobytes()
