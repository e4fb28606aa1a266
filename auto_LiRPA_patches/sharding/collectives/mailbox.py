"""Messages that the ranks of one host leave each other in shared memory.

Over the loopback, a message of one number takes two busy ranks a millisecond (measured: 0.6 to 1.1
with gloo, torch 2.14), since the kernel and the library's own threads have to be given a core; left
in memory that both have mapped, it takes some microseconds. Ranks of small networks meet hundreds
of times per second.

Each rank has a box, a file in memory that the others map: a few counters, and two slots. A message
is put into the slots in turn, and then counted; a longer one comes in several parts. Nobody needs
to say that a slot was read: a rank that has counted message k + 1 has read message k of everybody,
and to write message k + 2 into the slot of k a rank must have seen everybody's k + 1.

Every part begins with what it is for and how long the whole is. Ranks that meet here for different
reasons all learn it from that, and mix nothing.

Stores must become visible in the order in which they are made, so this is for x86 alone.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RanksDisagreeError
from auto_LiRPA_patches.sharding.host_file import Address, anonymous_file, open_file

SLOT_BYTES = 1 << 19
# Bytes of the whole message; bytes of its purpose, as much of it as is told; and a hash of all.
_HEAD = struct.Struct("<qqq")
_HEAD_BYTES = 4096
_COUNTERS = 64  # where they begin in the file
_FILE_BYTES = _HEAD_BYTES + 2 * (_HEAD_BYTES + SLOT_BYTES)
_PURPOSE_BYTES = 256

# Counters of a box: messages left, whether its rank is gone, and the gather over the network that
# its rank waits for, counted from 1.
_LEFT, _GONE, _WAITS_FOR = 0, 8, 16  # a cache line each

_POLLS = 200
_YIELDING_SECONDS = 2e-3
_LONGEST_PAUSE = 1e-3
_LOOK_SECONDS = 0.02


class PeerLostError(RuntimeError):
    """A rank is gone, or does not come."""


class Mailbox:
    """This rank's box, and those of the other ranks of its group."""

    def __init__(self, rank: int, boxes: Sequence[_Box], timeout_seconds: float) -> None:
        """Use `meet` instead."""
        self._rank = rank
        self._boxes = boxes
        self._others = [other for other in range(len(boxes)) if other != rank]
        self._own = boxes[rank]
        self._timeout = timeout_seconds
        self._begun = 0
        weakref.finalize(self, _leave, self._own, os.getpid())

    @staticmethod
    def meet(rank: int, tell: Callable[[Any], list[Any]], timeout_seconds: float) -> Mailbox | None:
        """Map every rank's box; None, on all of them, where one of them cannot. A collective.

        Args:
            rank: this one.
            tell: gives every rank's value to all, by rank.
            timeout_seconds: how long a rank waits for another one's message.
        """
        boxes: list[_Box | None] = []
        own = _Box.made() if platform.machine() in ("x86_64", "AMD64") else None
        addresses = tell(None if own is None else own.address)
        if None not in addresses:
            boxes = [
                own if other == rank else _Box.opened(address)
                for other, address in enumerate(addresses)
            ]
        met = [box for box in boxes if box is not None]
        if not all(tell(len(met) == len(addresses))):
            return None
        return Mailbox(rank, met, timeout_seconds)

    def all_gather(self, purpose: str, own: Tensor, into: Tensor) -> None:
        """Fill ``into [R * n]`` with every rank's ``own [n]``, both uint8 on the CPU.

        Raises:
            RanksDisagreeError: ranks are here for different reasons, or with messages of
                different length; on every rank.
            PeerLostError: a rank ended, or did not come within the timeout.
        """
        size = own.shape[0]
        source, rows = own.numpy(), into.view(len(self._boxes), size).numpy()
        rows[self._rank] = source
        for start in _parts(size):
            stop = min(start + SLOT_BYTES, size)
            self._put(purpose, size, source[start:stop])
            for other in self._others:
                rows[other, start:stop] = self._seen(other, purpose, size)[: stop - start]

    def all_reduce_sum(self, purpose: str, tensor: Tensor) -> None:
        """Add up ``tensor [n]`` of all ranks in place, in their order, the same bits everywhere.

        Args:
            tensor: contiguous, on the CPU.

        Raises:
            RanksDisagreeError, PeerLostError: see `all_gather`.
        """
        width = tensor.element_size()
        for start in _parts(tensor.nbytes):
            part = tensor[start // width : (start + SLOT_BYTES) // width]
            self._put(purpose, tensor.nbytes, part.view(torch.uint8).numpy())
            seen = [self._own.slot(self._own.count)] * len(self._boxes)
            for other in self._others:
                seen[other] = self._seen(other, purpose, tensor.nbytes)
            terms = [torch.from_numpy(slot[: part.nbytes]).view(part.dtype) for slot in seen]
            torch.add(terms[0], terms[1], out=part)
            for more in terms[2:]:
                part += more

    def broadcast(self, purpose: str, memory: Tensor, source: int) -> None:
        """Overwrite ``memory [n]``, uint8 on the CPU, with that of rank `source`.

        Raises:
            RanksDisagreeError, PeerLostError: see `all_gather`.
        """
        size, whole = memory.shape[0], memory.numpy()
        for start in _parts(size):
            part = whole[start : start + SLOT_BYTES]
            self._put(purpose, size, part if source == self._rank else part[:0])
            for other in self._others:
                left = self._seen(other, purpose, size)
                if other == source:
                    part[:] = left[: len(part)]

    def all_to_all(
        self, purpose: str, own: Tensor, table: Sequence[Sequence[int]], into: Tensor
    ) -> None:
        """Fill `into` with what all ranks have for this one, by rank; both uint8 on the CPU.

        Args:
            own: what this rank has for rank 0, then for rank 1, ...
            table: bytes that each rank has for each; the same on all ranks.

        Raises:
            RanksDisagreeError, PeerLostError: see `all_gather`.
        """
        longest = max(sum(row) for row in table)
        source, target = own.numpy(), into.numpy()
        pieces = []  # where this rank's piece begins in the message of each, and in `into`
        end = 0
        for row in table:
            pieces.append((sum(row[: self._rank]), row[self._rank], end))
            end += row[self._rank]
        first, size, place = pieces[self._rank]
        target[place : place + size] = source[first : first + size]
        for start in _parts(longest):
            self._put(purpose, longest, source[start : start + SLOT_BYTES])
            for other in self._others:
                left = self._seen(other, purpose, longest)
                first, size, place = pieces[other]
                low, high = max(first, start), min(first + size, start + SLOT_BYTES)
                if low < high:
                    found = left[low - start : high - start]
                    target[place + low - first : place + high - first] = found

    def meet_for(self, purpose: str) -> None:
        """Wait until every rank is here for the same reason.

        Raises:
            RanksDisagreeError, PeerLostError: see `all_gather`.
        """
        self._put(purpose, 0, None)
        for other in self._others:
            self._seen(other, purpose, 0)

    def begin_gather(self) -> int:
        """A number for a gather over the network that all ranks begin in this order."""
        self._begun += 1
        return self._begun

    @contextmanager
    def waiting_for(self, gather: int) -> Iterator[None]:
        """Within the block this rank waits for a gather over the network.

        A rank that has not begun it, and waits here for this one, then knows that both would wait
        for ever.
        """
        self._own.counters[_WAITS_FOR] = gather
        try:
            yield
        finally:
            self._own.counters[_WAITS_FOR] = 0

    def _put(self, purpose: str, size: int, part: np.ndarray | None) -> None:
        """Leave one part of a message."""
        box = self._own
        number = box.count + 1
        box.write_head(number, _head(purpose, size))
        if part is not None:
            box.slot(number)[: len(part)] = part
        box.counters[_LEFT] = number

    def _seen(self, other: int, purpose: str, size: int) -> np.ndarray:
        """The slot with another rank's part, as numerous as this rank's last; waits for it."""
        number = self._own.count
        box = self._boxes[other]
        if box.count < number:
            self._wait(other, number)
        if not box.begins_with(number, _head(purpose, size)):
            self._explain(number)
        return box.slot(number)

    def _wait(self, other: int, number: int) -> None:
        box = self._boxes[other]
        for _ in range(_POLLS):
            if box.count >= number:
                return
        begun = looked = time.monotonic()
        while box.count < number:
            now = time.monotonic()
            if now - begun < _YIELDING_SECONDS:
                os.sched_yield()
                continue
            if now - looked > _LOOK_SECONDS:
                looked = now
                self._look(other, number, now - begun)
            time.sleep(min(_LONGEST_PAUSE, (now - begun) / 20))

    def _look(self, other: int, number: int, waited: float) -> None:
        """Find out whether waiting is of any use."""
        for peer in (other, *self._others):
            box = self._boxes[peer]
            gone = bool(box.counters[_GONE]) or not box.is_alive()
            # What it has left before that counts.
            if gone and box.count < number:
                raise PeerLostError(f"rank {peer} has ended")
        gather = self._boxes[other].counters[_WAITS_FOR]
        if gather > self._begun and self._boxes[other].count < number:
            raise PeerLostError(f"rank {other} waits for gather {gather}, which has not begun here")
        if waited > self._timeout:
            raise PeerLostError(f"rank {other} did not come within {self._timeout:g} s")

    def _explain(self, number: int) -> None:
        """Say what every rank came for."""
        for other in self._others:
            if self._boxes[other].count < number:
                self._wait(other, number)
        said = (f"rank {rank} at {box.said(number)}" for rank, box in enumerate(self._boxes))
        raise RanksDisagreeError(
            f"expected all {len(self._boxes)} ranks at the same collective, got "
            f"{', '.join(said)}. The ranks did not follow one schedule."
        )


class _Box:
    """One rank's file as this process has mapped it."""

    def __init__(self, file: int, address: Address) -> None:
        self.address = address
        self._memory = mmap.mmap(file, _FILE_BYTES)
        self.counters = memoryview(self._memory)[_COUNTERS : _COUNTERS + 256].cast("q")
        # No tensors: a rank's memory is counted by its tensors, and most of this is the others'.
        self._slots = [
            np.frombuffer(self._memory, np.uint8, SLOT_BYTES, self._start(number) + _HEAD_BYTES)
            for number in (0, 1)
        ]
        self._born = _birth_of(address.process)
        weakref.finalize(self, os.close, file)

    @staticmethod
    def made() -> _Box | None:
        """A box of this process; None where the system has no such memory."""
        file = anonymous_file("abcrown-mailbox")
        if file is None:
            return None
        try:
            os.posix_fallocate(file, 0, _FILE_BYTES)  # what is missing is told here
            return _Box(file, Address.of(file))
        except OSError:
            os.close(file)
            return None

    @staticmethod
    def opened(address: Address) -> _Box | None:
        """Another process's box; None if it is not on this host, or not ours to open."""
        file = open_file(address, os.O_RDWR)
        if file is None:
            return None
        try:
            return _Box(file, address)
        except (OSError, ValueError):  # no room to map it
            os.close(file)
            return None

    @property
    def count(self) -> int:
        """Parts left so far."""
        return self.counters[_LEFT]

    def slot(self, number: int) -> np.ndarray:
        """Where part `number` is, uint8 ``[SLOT_BYTES]``."""
        return self._slots[number % 2]

    def write_head(self, number: int, head: bytes) -> None:
        """Say what part `number` is of."""
        start = self._start(number)
        self._memory[start : start + len(head)] = head

    def begins_with(self, number: int, head: bytes) -> bool:
        """Whether part `number` is of just this."""
        start = self._start(number)
        return self._memory[start : start + len(head)] == head

    def said(self, number: int) -> str:
        """What part `number` is of."""
        start = self._start(number)
        size, length, _ = _HEAD.unpack_from(self._memory, start)
        text = self._memory[start + _HEAD.size : start + _HEAD.size + length].decode(
            errors="replace"
        )
        return f"{text} ({size} bytes)" if size else text

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return _birth_of(self.address.process) == self._born

    def _start(self, number: int) -> int:
        return _HEAD_BYTES + (number % 2) * (_HEAD_BYTES + SLOT_BYTES)


def _head(purpose: str, size: int) -> bytes:
    text = purpose.encode()
    told = text[:_PURPOSE_BYTES]
    return _HEAD.pack(size, len(told), zlib.crc32(text)) + told


def _parts(size: int) -> range:
    """Where the parts of a message begin; of an empty one there is one too."""
    return range(0, max(size, 1), SLOT_BYTES)


def _leave(box: _Box, process: int) -> None:
    if os.getpid() == process:  # a child that was forked off has it too
        box.counters[_GONE] = 1


def _birth_of(process: int) -> str | None:
    """When a process began, in the system's ticks; None if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
