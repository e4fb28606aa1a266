"""The pool of open subproblems: tensor slabs and one sorted list, no object per subproblem."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sortedcontainers import SortedList
from torch import Tensor

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from complete_verifier.bab.domain_batch import MODULUS, DomainBatch
from complete_verifier.bab.slabs import Slabs


class DomainPool:
    """Open subproblems in a total order: no two paths are equal.

    Worst first, the order is margin, then path. Depth first it is the deepest subproblem, and among
    those the one with the largest margin; `sort` puts all that wait at a time behind those to come,
    ordered by margin.

    Lives on the CPU: subproblems wait here, they are not computed with.
    """

    def __init__(self, *, worst_first: bool) -> None:
        """Create an empty pool.

        Args:
            worst_first: take the smallest margin first (`breadth_first`); otherwise depth first.
        """
        self._worst_first = worst_first
        self._order: SortedList = SortedList()
        self._slabs: Slabs | None = None
        self._fingerprint = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def num_bytes(self) -> int:
        """Bytes of the slabs, room for growth included."""
        return 0 if self._slabs is None else self._slabs.num_bytes

    @property
    def worst_margin(self) -> float:
        """The smallest margin of an open subproblem; +inf when none is open."""
        return float("inf") if self._slabs is None else self._slabs.worst_margin

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
        slots = [int(key[-1]) for key in self._order]
        margins = self._slabs.margins(slots) if self._slabs is not None else []
        self._order = SortedList(
            (1, margin, 0.0, *key[-2:]) for margin, key in zip(margins, self._order, strict=True)
        )

    def add(self, batch: DomainBatch) -> None:
        """Put subproblems in; an empty batch says what those to come look like."""
        batch = batch.rebuilt([tensor.cpu() for tensor in batch.tensors])
        if self._slabs is None:
            self._slabs = Slabs(batch)
        fingerprint = (self._fingerprint + batch.fingerprint) % MODULUS
        slots = self._slabs.put(batch)
        self._fingerprint = fingerprint
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
            self._slabs.make_room(count)

    def take(self, count: int) -> DomainBatch:
        """Take out up to `count` subproblems, first in order first."""
        return self._out(range(min(count, len(self))))

    def take_fitting(self, count: int) -> DomainBatch:
        """Take out up to `count` subproblems, fewer where memory does not hold so many."""
        try:
            return self.take(count)
        except Exception as error:
            if count <= 1 or not ran_out_of_memory(error):
                raise
        return self.take_fitting(count // 2)

    def take_spread(self, count: int) -> DomainBatch:
        """Take out `count` subproblems, or all, from all over the order: what is left is alike."""
        count = min(count, len(self))
        return self._out([(2 * number + 1) * len(self) // (2 * count) for number in range(count)])

    def _out(self, places: Sequence[int]) -> DomainBatch:
        """Take out the subproblems at ascending places of the order.

        Where memory does not hold them, all of them stay.
        """
        if self._slabs is None:
            raise ValueError("the pool is empty")
        slots = [int(self._order[place][-1]) for place in places]
        batch = self._slabs.read(slots)
        fingerprint = (self._fingerprint - batch.fingerprint) % MODULUS
        self._slabs.free(slots)
        for place in reversed(places):
            del self._order[place]
        self._fingerprint = fingerprint
        return batch
