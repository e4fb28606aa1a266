"""The pool of open input boxes: one slab per attribute, no object per subproblem.

Shape letters: B boxes, I inputs (flat), C clauses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Boxes:
    """B subproblems: input boxes with what is known of them.

    Attributes:
        lower, upper: ``[B, I]`` in the network's precision.
        score: ``[B, I]`` what halving each input promises; only its order matters.
        margin: ``[B]`` float64: every point's margin of every open clause is at least this.
        path: ``[B]`` int64, position in the tree: the side of split k = 0, 1, … is bit 61 - k.
            Neighbours in the tree are neighbours in this order; unique down to 62 splits.
        key: ``[B]`` int64, a number that follows from the splits alone; no two boxes share one.
        depth: ``[B]`` int32, number of splits.
        excluded: ``[B, C]`` bool, clauses no point of the box satisfies.
    """

    lower: Tensor
    upper: Tensor
    score: Tensor
    margin: Tensor
    path: Tensor
    key: Tensor
    depth: Tensor
    excluded: Tensor

    @property
    def count(self) -> int:
        """Number of boxes B."""
        return int(self.path.shape[0])

    @property
    def is_open(self) -> Tensor:
        """``[B]`` bool: some clause is not excluded."""
        return ~self.excluded.all(dim=1)

    @property
    def splittable(self) -> Tensor:
        """``[B, I]`` bool: some number lies strictly between the input's ends."""
        middle = midpoint(self.lower, self.upper)
        return (self.lower < middle) & (middle < self.upper)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(getattr(self, name).nbytes for name in _FIELDS)

    @property
    def tensors(self) -> list[Tensor]:
        """All attributes, in order."""
        return [getattr(self, name) for name in _FIELDS]

    @property
    def width(self) -> int:
        """Of what boxes have different numbers of: nothing."""
        return 0

    def widen(self, width: int) -> Boxes:
        """The same; all boxes are equally large."""
        return self

    def rebuilt(self, tensors: list[Tensor]) -> Boxes:
        """Boxes of other tensors, in the order of `tensors`."""
        return Boxes(*tensors)

    def joined(self, other: Boxes) -> Boxes:
        """These boxes, then others."""
        return Boxes.concatenate([self, other])

    @property
    def fingerprint(self) -> int:
        """A number made of what each box is; equal for equal sets, a sum modulo 2^64."""
        return int(self.marks.sum()) % _MODULUS

    @property
    def marks(self) -> Tensor:
        """``[B]`` int64 made of all that counts in each box; their sum is the fingerprint."""
        kind = torch.int32 if self.lower.element_size() == 4 else torch.int64
        column = (2 * torch.arange(self.lower.shape[1], device=self.key.device) + 1) * _STEP
        ends = self.lower.view(kind) * column + self.upper.view(kind) * (column ^ _ODD)
        mixed = (self.key ^ (self.margin.view(torch.int64) * _ODD)) + ends.sum(dim=1)
        clauses = torch.arange(1, self.excluded.shape[1] + 1, device=self.key.device) * _ODD
        mixed = mixed + (self.excluded * clauses).sum(dim=1)
        mixed = (mixed ^ (mixed >> 29)) * _ODD
        return (mixed ^ (mixed >> 32)) * _ODD

    def select(self, index: Tensor) -> Boxes:
        """The boxes at ``index``: positions, or a mask ``[B]``."""
        places = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        return Boxes(*(getattr(self, name).index_select(0, places) for name in _FIELDS))

    def put(self, index: Tensor, part: Boxes) -> Boxes:
        """The same with other boxes at the positions ``index``."""
        pairs = ((getattr(self, name), getattr(part, name)) for name in _FIELDS)
        return Boxes(*(own.index_copy(0, index, new) for own, new in pairs))

    @staticmethod
    def concatenate(parts: list[Boxes]) -> Boxes:
        """All boxes of at least one part, in order."""
        if len(parts) == 1:
            return parts[0]
        return Boxes(*(torch.cat([getattr(part, name) for part in parts]) for name in _FIELDS))


_FIELDS = ("lower", "upper", "score", "margin", "path", "key", "depth", "excluded")
# A 64-bit congruential mix: equal splits give equal keys on every rank.
_ODD, _STEP = 6364136223846793005, 1442695040888963407
_MODULUS = 1 << 64


def midpoint(lower: Tensor, upper: Tensor) -> Tensor:
    """A number of the same precision in ``[lower, upper]``, near the middle; never overflows."""
    middle = lower / 2 + upper / 2
    # Halving loses the last bit of a subnormal number.
    return torch.minimum(torch.maximum(middle, lower), upper)


def root_boxes(lower: Tensor, upper: Tensor, excluded: Tensor) -> Boxes:
    """The whole region as one subproblem.

    Args:
        lower, upper: ``[I]``.
        excluded: ``[C]``.
    """
    return Boxes(
        lower=lower.unsqueeze(0),
        upper=upper.unsqueeze(0),
        score=(upper - lower).unsqueeze(0),
        margin=torch.full((1,), -torch.inf, dtype=torch.float64, device=lower.device),
        path=torch.zeros(1, dtype=torch.int64, device=lower.device),
        key=torch.ones(1, dtype=torch.int64, device=lower.device),
        depth=torch.zeros(1, dtype=torch.int32, device=lower.device),
        excluded=excluded.unsqueeze(0),
    )


def halve(parents: Boxes, dims: Tensor) -> Boxes:
    """Both halves of every box, siblings beside each other.

    Args:
        parents: B boxes.
        dims: ``[B]`` the input each is split at; must be splittable.

    Returns:
        2 B boxes. Siblings share the splitting point, so their union is the parent. They inherit
        margin and excluded clauses; the score of the input just split is halved.
    """
    column = dims.unsqueeze(1)
    low, high = parents.lower.gather(1, column), parents.upper.gather(1, column)
    middle = midpoint(low, high)
    score = parents.score.scatter(1, column, parents.score.gather(1, column) / 2)
    step = torch.full_like(parents.path, 1 << 61) >> parents.depth.clamp(max=63)
    key = parents.key * _ODD + (2 * dims + 1) * _STEP

    def pair(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([first, second], dim=1).flatten(0, 1)

    return Boxes(
        lower=pair(parents.lower, parents.lower.scatter(1, column, middle)),
        upper=pair(parents.upper.scatter(1, column, middle), parents.upper),
        score=pair(score, score),
        margin=pair(parents.margin, parents.margin),
        path=pair(parents.path, parents.path + step),
        key=pair(key, key + _STEP),
        depth=pair(parents.depth + 1, parents.depth + 1),
        excluded=pair(parents.excluded, parents.excluded),
    )


class BoxPool:
    """Open boxes in a total order: margin, then path, then key.

    The live boxes fill the front of the slabs in no order; the order is made when boxes are
    taken, by one partial selection over the margins. Adding and taking cost a few tensor
    operations, whatever the number of boxes. Slabs grow by half.
    """

    def __init__(self, *, worst_first: bool = True) -> None:
        """Create an empty pool.

        Args:
            worst_first: take the smallest margins first (`breadth_first`); otherwise the deepest
                boxes, and among those the smallest margins (`depth_first`).
        """
        self._worst_first = worst_first
        self._slabs: Boxes | None = None
        self._marks = torch.zeros(0, dtype=torch.int64)  # of the boxes as they were put in
        self._count = 0
        self._fingerprint = 0

    def __len__(self) -> int:
        return self._count

    @property
    def num_bytes(self) -> int:
        """Bytes of the slabs, room for growth included."""
        return 0 if self._slabs is None else self._slabs.num_bytes + self._marks.nbytes

    @property
    def worst_margin(self) -> float:
        """The smallest margin of an open box; +inf when none is open."""
        if self._slabs is None or self._count == 0:
            return float("inf")
        return float(self._slabs.margin[: self._count].min())

    @property
    def fingerprint(self) -> int:
        """That of all open boxes together; 0 when none is open."""
        return self._fingerprint

    def keys(self, count: int) -> Tensor:
        """Margins' bits, paths, keys and depths of the first `count` boxes, ``[n, 4]`` int64."""
        if self._slabs is None:
            return torch.zeros(0, 4, dtype=torch.int64)
        first = self._slabs.select(self._first(self._slabs, min(count, self._count)))
        margins = first.margin.view(torch.int64)
        return torch.stack([margins, first.path, first.key, first.depth.long()], dim=1).cpu()

    def add(self, boxes: Boxes) -> None:
        """Put boxes in; none at all say what those to come look like."""
        if boxes.count == 0:
            if self._slabs is None:
                self._slabs = boxes
            return
        slabs, marks = self._reserve(boxes), boxes.marks
        self._fingerprint = (self._fingerprint + int(marks.sum())) % _MODULUS
        places = slice(self._count, self._count + boxes.count)
        for name in _FIELDS:
            getattr(slabs, name)[places] = getattr(boxes, name)
        self._marks[places] = marks
        self._count += boxes.count

    def make_room(self, count: int) -> None:
        """Take the memory for `count` more, so that adding them will not want it."""
        if self._slabs is not None:
            self._grow(count, self._slabs)

    def take(self, count: int) -> Boxes:
        """Take out up to `count` boxes, first in order first.

        Raises:
            ValueError: the pool was never filled.
        """
        if self._slabs is None:
            raise ValueError("the pool is empty")
        return self._out(self._slabs, self._first(self._slabs, min(count, self._count)))

    def take_fitting(self, count: int) -> Boxes:
        """Take out up to `count` boxes; they are small, and none is left out for want of memory."""
        return self.take(count)

    def take_spread(self, count: int) -> Boxes:
        """Take out `count` boxes, or all, from all over the order: what is left is alike."""
        if self._slabs is None:
            raise ValueError("the pool is empty")
        count = min(count, self._count)
        places = (2 * torch.arange(count) + 1) * self._count // max(1, 2 * count)
        order = self._first(self._slabs, self._count)
        return self._out(self._slabs, order[places.to(order.device)])

    def _out(self, slabs: Boxes, chosen: Tensor) -> Boxes:
        """Take out the boxes at some positions."""
        taken = slabs.select(chosen)
        marks = int(self._marks.index_select(0, chosen).sum())
        self._fill_holes(slabs, chosen)
        self._count -= taken.count
        self._fingerprint = (self._fingerprint - marks) % _MODULUS
        return taken

    def _first(self, slabs: Boxes, count: int) -> Tensor:
        """Positions of the first `count` boxes in order."""
        margin = slabs.margin[: self._count]
        key = margin if self._worst_first else -slabs.depth[: self._count].double()
        candidates = torch.arange(self._count, device=key.device)
        if 0 < count < self._count:
            bound = key.kthvalue(count).values
            candidates = candidates[key <= bound]  # more than `count` where keys are equal
        order = np.lexsort(
            (
                slabs.key[candidates].cpu().numpy(),
                slabs.path[candidates].cpu().numpy(),
                margin[candidates].cpu().numpy(),
                key[candidates].cpu().numpy(),
            )
        )
        return candidates[torch.from_numpy(order[:count]).to(candidates.device)]

    def _fill_holes(self, slabs: Boxes, holes: Tensor) -> None:
        """Move the last live boxes to the places of the taken ones."""
        left = self._count - holes.shape[0]
        is_hole = torch.zeros(self._count, dtype=torch.bool, device=holes.device)
        is_hole[holes] = True
        movers = left + (~is_hole[left:]).nonzero().squeeze(1)
        places = is_hole[:left].nonzero().squeeze(1)
        for slab in (*slabs.tensors, self._marks):
            slab[places] = slab[movers]

    def _reserve(self, boxes: Boxes) -> Boxes:
        """Slabs with room for `boxes` behind the live ones."""
        return self._grow(boxes.count, boxes if self._slabs is None else self._slabs)

    def _grow(self, count: int, like: Boxes) -> Boxes:
        """Slabs with room for `count` behind the live ones."""
        capacity = 0 if self._slabs is None else self._slabs.count
        missing = self._count + count - capacity
        if self._slabs is not None and missing <= 0:
            return self._slabs
        grown = max(missing, capacity // 2)
        tensors = []
        for name in _FIELDS:
            old = getattr(like, name)
            slab = old.new_empty(capacity + grown, *old.shape[1:])
            if self._slabs is not None:
                slab[: self._count] = getattr(self._slabs, name)[: self._count]
            tensors.append(slab)
        self._slabs = Boxes(*tensors)
        marks = self._marks.new_empty(capacity + grown, device=like.key.device)
        marks[: self._count] = self._marks[: self._count]
        self._marks = marks
        return self._slabs
