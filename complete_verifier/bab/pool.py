"""The pool of open subproblems: tensor slabs and one sorted list, no object per subproblem."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sortedcontainers import SortedList
from torch import Tensor


@dataclass(frozen=True)
class DomainBatch:
    """B subproblems outside the pool.

    Attributes:
        clause: ``[B]`` int64, the open clause a subproblem belongs to.
        path: ``[B]`` int64, an id derived from the split path alone.
        depth: ``[B]`` int64, number of splits.
        splits: ``[B, D]`` int32; ``+(t + 1)`` or ``-(t + 1)`` for feature t split to that side, 0
            behind the last split.
        points: ``[B, D]`` where: ``z >= point`` or ``z <= point``.
        betas: ``[B, S, D]`` multipliers of the splits.
        alphas: ``[B, S, KT]`` slopes of all features.
        ranges: ``[B, 2, T]`` lower and upper bounds of the features over the subproblem; T = 0
            where the root's serve all subproblems.
        margin: ``[B]`` float64: best lower bound minus threshold over the clause's rows.
    """

    clause: Tensor
    path: Tensor
    depth: Tensor
    splits: Tensor
    points: Tensor
    betas: Tensor
    alphas: Tensor
    ranges: Tensor
    margin: Tensor

    @property
    def count(self) -> int:
        """Number of subproblems B."""
        return int(self.clause.shape[0])

    def select(self, index: Tensor) -> DomainBatch:
        """The subproblems at ``index`` (positions or a mask)."""
        return DomainBatch(*(getattr(self, name)[index] for name in _FIELDS))

    def widen(self, depth: int) -> DomainBatch:
        """The same with room for `depth` splits each."""
        missing = depth - self.splits.shape[1]
        if missing <= 0:
            return self
        pad = torch.nn.functional.pad
        deep = {name: pad(getattr(self, name), (0, missing)) for name in _DEEP}
        return replace(self, **deep)

    @property
    def width(self) -> int:
        """Splits there is room for, D."""
        return int(self.splits.shape[1])

    @property
    def tensors(self) -> list[Tensor]:
        """All attributes, in order."""
        return [getattr(self, name) for name in _FIELDS]

    def rebuilt(self, tensors: list[Tensor]) -> DomainBatch:
        """Subproblems like these with other values, `tensors` as in `tensors`."""
        return DomainBatch(*tensors)

    def joined(self, other: DomainBatch) -> DomainBatch:
        """These subproblems, then others."""
        return DomainBatch.concatenate([self, other])

    @property
    def fingerprint(self) -> int:
        """A number made of what each subproblem is: clause, path, splits and the margin's bits.

        Equal for equal sets, in whatever order and with however much room; a sum modulo 2^64, so
        that ranks can add theirs.
        """
        column = (2 * torch.arange(self.width, device=self.path.device) + 1) * _ODD
        points = self.points.view(torch.int32 if self.points.element_size() == 4 else torch.int64)
        mixed = self.path ^ (self.clause * _ODD) ^ (self.margin.view(torch.int64) * _ODD)
        mixed = mixed + (self.splits * column).sum(dim=1) + (points * (column ^ _ODD)).sum(dim=1)
        mixed = (mixed ^ (mixed >> 29)) * _ODD
        return int(((mixed ^ (mixed >> 32)) * _ODD).sum()) % _MODULUS

    @staticmethod
    def concatenate(batches: list[DomainBatch]) -> DomainBatch:
        """All subproblems of the given batches, in order; one batch is returned as it is."""
        if len(batches) == 1:
            return batches[0]
        depth = max(batch.splits.shape[1] for batch in batches)
        wide = [batch.widen(depth) for batch in batches]
        return DomainBatch(*(torch.cat([getattr(b, name) for b in wide]) for name in _FIELDS))


_DEEP = ("splits", "points", "betas")
_FIELDS = ("clause", "path", "depth", *_DEEP, "alphas", "ranges", "margin")


_ODD = 6364136223846793005
_MODULUS = 1 << 64


class DomainPool:
    """Open subproblems in a total order: no two paths are equal.

    Worst first, the order is margin, then path. Depth first it is the deepest subproblem, and among
    those the one with the largest margin; `sort` puts all that wait at a time behind those to come,
    ordered by margin.

    Slabs grow by half; a freed slot is used again. Lives on the CPU: subproblems wait here, they
    are not computed with.
    """

    def __init__(self, *, worst_first: bool) -> None:
        """Create an empty pool.

        Args:
            worst_first: take the smallest margin first (`breadth_first`); otherwise depth first.
        """
        self._worst_first = worst_first
        self._order: SortedList = SortedList()
        self._free: list[int] = []
        self._slabs: DomainBatch | None = None
        self._capacity = 0
        self._fingerprint = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def num_bytes(self) -> int:
        """Bytes of the slabs, room for growth included."""
        if self._slabs is None:
            return 0
        return sum(getattr(self._slabs, name).nbytes for name in _FIELDS)

    @property
    def worst_margin(self) -> float:
        """The smallest margin of an open subproblem; +inf when none is open."""
        if not self._order:
            return float("inf")
        return float(self._require_slabs().margin.min())  # free slots hold +inf

    @property
    def fingerprint(self) -> int:
        """That of all open subproblems together, see `DomainBatch`; 0 when none is open."""
        return self._fingerprint

    def keys(self, count: int) -> Tensor:
        """Bits of the margins, and paths, of the first `count` subproblems: ``[n, 3]`` int64.

        For a pool in the order of bounds. The last column is zero: no two paths are equal.
        """
        first = list(self._order[:count])
        margins = torch.tensor([key[0] for key in first], dtype=torch.float64)
        paths = torch.tensor([key[1] for key in first], dtype=torch.int64)
        return torch.stack([margins.view(torch.int64), paths, torch.zeros_like(paths)], dim=1)

    def sort(self) -> None:
        """Depth first, put what waits now behind what will come, ordered by margin."""
        if self._worst_first:
            return
        margin = self._require_slabs().margin.tolist() if self._order else []
        self._order = SortedList((1, margin[key[-1]], 0.0, *key[-2:]) for key in self._order)

    def add(self, batch: DomainBatch) -> None:
        """Put subproblems in; an empty batch says what those to come look like."""
        if batch.count == 0:
            if self._slabs is None:
                self._slabs = batch
            return
        batch = DomainBatch(*(getattr(batch, name).cpu() for name in _FIELDS))
        self._reserve(batch)
        self._fingerprint = (self._fingerprint + batch.fingerprint) % _MODULUS
        slots = [self._free.pop() for _ in range(batch.count)]
        index = torch.tensor(slots)
        slabs = self._require_slabs()
        wide = batch.widen(slabs.splits.shape[1])
        for name in _FIELDS:
            getattr(slabs, name)[index] = getattr(wide, name)
        margins, paths = batch.margin.tolist(), batch.path.tolist()
        if self._worst_first:
            self._order.update(zip(margins, paths, slots, strict=True))
            return
        depths = batch.depth.tolist()
        self._order.update(
            (0, -depth, -margin, path, slot)
            for depth, margin, path, slot in zip(depths, margins, paths, slots, strict=True)
        )

    def make_room(self, count: int) -> None:
        """Take the memory for `count` more, so that adding them will not want it."""
        if self._slabs is not None:
            self._grow(count, self._slabs)

    def take(self, count: int) -> DomainBatch:
        """Take out up to `count` subproblems, first in order first."""
        chosen = list(self._order[:count])
        del self._order[:count]
        return self._out(chosen)

    def take_spread(self, count: int) -> DomainBatch:
        """Take out `count` subproblems, or all, from all over the order: what is left is alike."""
        count = min(count, len(self))
        places = [(2 * number + 1) * len(self) // (2 * count) for number in range(count)]
        chosen = [self._order[place] for place in places]
        for place in reversed(places):
            del self._order[place]
        return self._out(chosen)

    def _out(self, chosen: list[tuple[float, ...]]) -> DomainBatch:
        """The subproblems of some keys that have left the order; their slots become free."""
        slots = [int(key[-1]) for key in chosen]
        slabs, index = self._require_slabs(), torch.tensor(slots, dtype=torch.int64)
        batch = slabs.select(index)
        slabs.margin[index] = torch.inf
        self._free.extend(slots)
        self._fingerprint = (self._fingerprint - batch.fingerprint) % _MODULUS
        depth = int(batch.depth.max()) if slots else 0
        return replace(batch, **{name: getattr(batch, name)[..., :depth] for name in _DEEP})

    def _require_slabs(self) -> DomainBatch:
        if self._slabs is None:
            raise ValueError("the pool is empty")
        return self._slabs

    def _reserve(self, batch: DomainBatch) -> None:
        depth = batch.splits.shape[1]
        if self._slabs is not None and depth > self._slabs.splits.shape[1]:
            self._slabs = self._slabs.widen(depth + 8)
        self._grow(batch.count, batch if self._slabs is None else self._slabs)

    def _grow(self, count: int, like: DomainBatch) -> None:
        """Have at least `count` free slots."""
        missing = count - len(self._free)
        if missing <= 0:
            return
        grown = max(missing, self._capacity // 2, 16)
        room = DomainBatch(
            *(
                getattr(like, name).new_zeros(grown, *getattr(like, name).shape[1:])
                for name in _FIELDS
            )
        )
        room.margin.fill_(torch.inf)
        self._slabs = room if self._slabs is None else DomainBatch.concatenate([self._slabs, room])
        self._free.extend(reversed(range(self._capacity, self._capacity + grown)))
        self._capacity += grown
