"""Room for subproblems that wait: slabs of tensors in segments that are never moved to grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from complete_verifier.bab.domain_batch import DomainBatch

# A segment holds a power of two of slots: what is left unused of the last one stays small, and
# taking a batch out touches few of them.
_SEGMENT_BYTES = 1 << 19
_FEWEST, _MOST = 16, 1024
_SPARE_DEPTH = 8


class Slabs:
    """Numbered slots for subproblems, in segments of equally many.

    Growing adds segments and copies nothing, so that the peak is what waits and a segment at most.
    A freed slot is used again; its margin is +inf meanwhile. Lives on the CPU.
    """

    def __init__(self, like: DomainBatch) -> None:
        """Take no memory yet.

        Args:
            like: subproblems, or none, of the shapes and types of those to come.
        """
        self._like = like.select(torch.arange(0))
        fitting = _SEGMENT_BYTES // max(1, like.bytes_each)
        self._slots = min(_MOST, max(_FEWEST, 1 << max(0, fitting.bit_length() - 1)))
        self._segments: list[DomainBatch] = []
        self._free: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(tensor.nbytes for segment in self._segments for tensor in segment.tensors)

    @property
    def worst_margin(self) -> float:
        """The smallest margin in a slot; +inf where there is none."""
        return min((float(one.margin.min()) for one in self._segments), default=float("inf"))

    def margins(self, slots: Sequence[int]) -> list[float]:
        """The margins in some slots."""
        found = torch.empty(len(slots), dtype=torch.float64)
        for segment, offsets, places in self._by_segment(slots):
            found[places] = self._segments[segment].margin[offsets]
        return found.tolist()

    def make_room(self, count: int) -> None:
        """Have at least `count` free slots."""
        while len(self._free) < count:
            wide = self._segments[-1] if self._segments else self._like
            room = wide.rebuilt([t.new_zeros(self._slots, *t.shape[1:]) for t in wide.tensors])
            room.margin.fill_(torch.inf)
            first = len(self._segments) * self._slots
            self._segments.append(room)
            self._free.extend(reversed(range(first, first + self._slots)))

    def put(self, batch: DomainBatch) -> list[int]:
        """Copy subproblems into free slots; returns those, in order."""
        self.make_room(batch.count)
        first = len(self._free) - batch.count
        slots = self._free[first:][::-1]
        parts = list(self._by_segment(slots))
        for segment, _, _ in parts:
            if self._segments[segment].width < batch.width:
                self._segments[segment] = self._segments[segment].widen(batch.width + _SPARE_DEPTH)
        copies = [
            batch.select(places).widen(self._segments[part].width) for part, _, places in parts
        ]
        del self._free[first:]  # from here on no memory is wanted that might not be there
        for (segment, offsets, _), copy in zip(parts, copies, strict=True):
            for slab, new in zip(self._segments[segment].tensors, copy.tensors, strict=True):
                slab[offsets] = new
        return slots

    def read(self, slots: Sequence[int]) -> DomainBatch:
        """Copy the subproblems of some slots out, in that order."""
        parts = list(self._by_segment(slots))
        depths = [int(self._segments[part].depth[offsets].max()) for part, offsets, _ in parts]
        like = self._like.fitted(max(depths, default=0))
        found = like.rebuilt([t.new_empty(len(slots), *t.shape[1:]) for t in like.tensors])
        for segment, offsets, places in parts:
            own = self._segments[segment].select(offsets).fitted(like.width)
            for new, old in zip(found.tensors, own.tensors, strict=True):
                new[places] = old
        return found

    def free(self, slots: Sequence[int]) -> None:
        """Let other subproblems have some slots."""
        for segment, offsets, _ in list(self._by_segment(slots)):
            self._segments[segment].margin.numpy()[offsets.numpy()] = np.inf
        self._free.extend(slots)

    def _by_segment(self, slots: Sequence[int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Per segment that has some of the slots: its number, their offsets, their places."""
        if len(slots) == 0:
            return
        index = np.asarray(slots, dtype=np.int64)
        segment = index // self._slots
        order = segment.argsort(kind="stable")
        numbers, starts = np.unique(segment[order], return_index=True)
        for number, places in zip(numbers, np.split(order, starts[1:]), strict=True):
            offsets = index[places] - number * self._slots
            yield int(number), torch.from_numpy(offsets), torch.from_numpy(places)
