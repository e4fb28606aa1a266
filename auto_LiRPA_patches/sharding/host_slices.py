"""Slices that the ranks of one host read from each other's memory, instead of sending them.

Over the loopback a gathered layer passes through the kernel's sockets, and the ranks wait for each
other: a 64 MiB layer took two ranks 100 ms of CPU time each, and takes 29 when read (measured).
Each rank keeps its slices in an anonymous file in memory. The file has no name, so nothing is left
behind by a rank that is killed; it counts once, for the rank that filled it; and since the others
read it (`pread`) without mapping it, their resident memory does not grow.

Slices are filled when they are registered and never written to again, so there is nothing to wait
for when one is read. Whether ranks read the *same* weight is the caller's to know.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import MemoryRanOutError, RankMismatchError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.gather_trail import Step
from auto_LiRPA_patches.sharding.host_file import SECRET_BYTES, Address, anonymous_file, open_file
from auto_LiRPA_patches.sharding.host_trail import TRAIL_BYTES, HostTrail, parting
from auto_LiRPA_patches.sharding.number_hash import hash_of

# A file begins with its secret, the place where its last slice ends, and the trail.
_COUNT_BYTES = 8
_TRAIL = SECRET_BYTES + _COUNT_BYTES
_PAGE = mmap.ALLOCATIONGRANULARITY
_HEAD_BYTES = -(-(_TRAIL + TRAIL_BYTES) // _PAGE) * _PAGE
_PATIENCE_SECONDS = 2.0
_ALIGNED = 64  # as torch's own allocator does
# Python keeps a descriptor for each mapping: one for each slice would soon be too many.
_SPAN_BYTES = 1 << 28


@dataclass(frozen=True)
class _Span:
    """A piece of the file that is mapped: bytes `start` to `stop`, most of them without memory."""

    start: int
    stop: int
    memory: mmap.mmap


class HostSlices:
    """The slices of this rank, and a way to those of the other ranks of its host."""

    def __init__(self, communicator: Communicator) -> None:
        """Hold nothing yet; no rank waits for another before `meet`."""
        self._communicator = communicator
        self._address: Address | None = None
        self._offsets: dict[int, int] = {}
        self._layout = 0
        self._file = anonymous_file("abcrown-weights")
        self._spans: list[_Span] = []
        self._end = _HEAD_BYTES
        self._files: list[int] = []  # to be closed with this object
        self._peers: list[int] | None = None
        self._met = False
        self._trail: HostTrail | None = None
        weakref.finalize(self, _close, self._files)
        if self._file is not None:
            self._files.append(self._file)
            self._trail = HostTrail(self._file, _TRAIL)
            try:
                os.ftruncate(self._file, _HEAD_BYTES)
                self._address = Address.of(self._file)
                os.pwrite(self._file, self._end.to_bytes(_COUNT_BYTES, "little"), SECRET_BYTES)
            except OSError:
                self._file = self._trail = None

    def place(self, index: int, length: int, dtype: torch.dtype) -> Tensor | None:
        """Return zeros ``[length]`` that the other ranks can read as number `index`, for filling.

        All ranks place slices of the same sizes under the same numbers, in the same order. None
        where the system has no such memory; the caller then uses its own.

        Raises:
            MemoryRanOutError: there is no memory left, and the other ranks count on reading it.
        """
        if index in self._offsets:
            raise ValueError(f"slice number {index} lies in memory already")
        num_bytes = length * dtype.itemsize
        if self._file is None:
            return None
        try:
            start = self._room(self._file, num_bytes)
            # Memory that is missing is told here, not by a signal at the first write.
            os.posix_fallocate(self._file, start, max(1, num_bytes))
        except OSError as error:
            if self._met:
                raise MemoryRanOutError(f"no memory for {num_bytes} bytes of weights") from error
            self._file = None  # `meet` tells the others
            return None
        self._offsets[index] = start
        self._layout = hash_of((index, start, num_bytes), self._layout)
        self._end = start + -(-num_bytes // _ALIGNED) * _ALIGNED
        os.pwrite(self._file, self._end.to_bytes(_COUNT_BYTES, "little"), SECRET_BYTES)
        if length == 0:
            return torch.empty(0, dtype=dtype)
        span = self._spans[-1]
        return torch.frombuffer(span.memory, dtype=dtype, count=length, offset=start - span.start)

    @property
    def is_met(self) -> bool:
        """Whether `meet` was asked, and said yes."""
        return self._peers is not None

    @property
    def layout(self) -> int:
        """A number that differs, as good as surely, where slices lie elsewhere."""
        return self._layout

    def meet(self) -> bool:
        """Whether every rank can read every other's slices; collective the first time.

        Not where ranks are on different hosts or in different containers, or may not look at each
        other's files.
        """
        if not self._met:
            self._met = True
            mine = None if self._file is None else self._address
            found = [open_file(address) for address in self._communicator.all_gather_object(mine)]
            opened = [file for file in found if file is not None]
            if self._communicator.agree_all(len(opened) == len(found)):
                self._peers = opened
                self._files += opened
            else:
                _close(opened)
        return self._peers is not None

    def note(self, step: Step) -> None:
        """Let the other ranks know that this one gathers a parameter."""
        if self._trail is not None:
            self._trail.note(step)

    def parting(self) -> list[Step | None] | None:
        """Every rank's first step at which they part; None where they do not, or nobody knows."""
        if self._peers is None:
            return None
        return parting(self._peers, self._communicator.rank, _TRAIL, _PATIENCE_SECONDS)

    def read(self, index: int, into: Tensor) -> Tensor:
        """Fill ``into [R, c]`` with every rank's slice number `index`, bit for bit; return it.

        Raises:
            RankMismatchError: a rank's memory is shorter than this rank's.
        """
        if self._peers is None:
            raise ValueError("slices are read once all ranks have met")
        rows = into.view(into.shape[0], -1).view(torch.uint8).numpy()
        start = self._offsets[index]
        for rank, (file, row) in enumerate(zip(self._peers, rows, strict=True)):
            end = int.from_bytes(os.pread(file, _COUNT_BYTES, SECRET_BYTES), "little")
            if end < start + len(row):
                raise RankMismatchError(
                    f"weights: expected parameter number {index} in the memory of rank {rank} at "
                    f"bytes {start} to {start + len(row)}, found nothing beyond {end}. The ranks "
                    "hold different networks."
                )
            memory, done = memoryview(row), 0
            while done < len(memory):
                count = os.preadv(file, [memory[done:]], start + done)
                if count == 0:
                    raise RankMismatchError(f"weights: the memory of rank {rank} was cut short.")
                done += count
        return into

    def _room(self, file: int, num_bytes: int) -> int:
        """Where the next slice lies: in the last span, or in a new one."""
        if not self._spans or self._end + num_bytes > self._spans[-1].stop:
            start = self._spans[-1].stop if self._spans else _HEAD_BYTES
            size = max(_SPAN_BYTES, -(-num_bytes // _PAGE) * _PAGE)
            os.ftruncate(file, start + size)
            self._spans.append(_Span(start, start + size, mmap.mmap(file, size, offset=start)))
            self._end = start
        return self._end


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
