"""The open account of one device's memory: which storages are alive, and what they are for."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind

_KINDS = tuple(MemoryKind)
_PLACE = {kind: place for place, kind in enumerate(_KINDS)}


@dataclass
class _Entry:
    reference: weakref.ref[Any]
    num_bytes: int
    place: int


class MemoryLedger:
    """Counts each distinct storage (or array) once, from when it is seen until it is freed.

    Units: bytes. The peak's breakdown is that of the moment of the peak.
    """

    def __init__(self, device_type: str) -> None:
        """Count on devices of `device_type`; numpy arrays count on the CPU."""
        self._device_type = device_type
        self._live = 0
        self._peak = 0
        self._by_kind = [0] * len(_KINDS)
        self._peak_by_kind = [0] * len(_KINDS)
        # Storages may be freed by another thread (gloo's, holding the last reference for a moment)
        # or in the middle of a count: their keys wait here until the counting thread looks.
        self._freed: deque[int] = deque()
        self._entries: dict[int, _Entry] = {}

    @property
    def live(self) -> int:
        """Bytes alive now."""
        self._subtract_freed()
        return self._live

    @property
    def peak(self) -> int:
        """The most bytes alive at a time since `restart_peak`."""
        return self._peak

    @property
    def live_by_kind(self) -> Mapping[MemoryKind, int]:
        """Bytes alive now, by kind."""
        self._subtract_freed()
        return dict(zip(_KINDS, self._by_kind, strict=True))

    @property
    def peak_by_kind(self) -> Mapping[MemoryKind, int]:
        """Bytes alive at the peak, by kind."""
        return dict(zip(_KINDS, self._peak_by_kind, strict=True))

    def see(self, tensors: Iterable[Tensor], kind: MemoryKind) -> None:
        """Count storages met for the first time under `kind`; the others keep theirs."""
        self._subtract_freed()  # before any look-up: a freed storage's id may be in use again
        place = _PLACE[kind]
        for tensor in tensors:
            if tensor.device.type == self._device_type and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                # torch keeps the Python object of a storage as long as the storage itself, so its
                # id names the storage until its key is among the freed.
                self._count(storage, storage.nbytes(), place, moves=False)
        self._look_at_peak()

    def recount(self, items: Iterable[Tensor | np.ndarray], kind: MemoryKind) -> None:
        """Count under `kind` whatever the items were counted as before."""
        self._subtract_freed()
        at_peak = self._live == self._peak
        place = _PLACE[kind]
        for item in items:
            if isinstance(item, np.ndarray):
                if self._device_type == "cpu":
                    owner = _owner(item)
                    self._count(owner, owner.nbytes, place, moves=True)
            elif item.device.type == self._device_type and item.layout == torch.strided:
                storage = item.untyped_storage()
                self._count(storage, storage.nbytes(), place, moves=True)
        if at_peak and self._live == self._peak:
            # What was just made set the peak, and only now is it known what it is for.
            self._peak_by_kind = list(self._by_kind)
        self._look_at_peak()

    def restart_peak(self) -> None:
        """Measure the peak from here on."""
        self._peak = self.live
        self._peak_by_kind = list(self._by_kind)

    def close(self) -> None:
        """Freeze the numbers and let go of every reference."""
        self._subtract_freed()
        self._entries.clear()  # the weak references' callbacks go with them
        self._freed.clear()

    def _count(self, owner: Any, num_bytes: int, place: int, *, moves: bool) -> None:
        key = id(owner)
        entry = self._entries.get(key)
        if entry is None:
            reference = weakref.ref(owner, lambda _: self._freed.append(key))
            self._entries[key] = _Entry(reference, num_bytes, place)
            self._add(num_bytes, place)
            return
        if num_bytes != entry.num_bytes:  # resized since
            self._add(num_bytes - entry.num_bytes, entry.place)
            entry.num_bytes = num_bytes
        if moves and place != entry.place:
            self._by_kind[entry.place] -= num_bytes
            self._by_kind[place] += num_bytes
            entry.place = place

    def _add(self, num_bytes: int, place: int) -> None:
        self._live += num_bytes
        self._by_kind[place] += num_bytes

    def _subtract_freed(self) -> None:
        while self._freed:
            entry = self._entries.pop(self._freed.popleft())
            self._add(-entry.num_bytes, entry.place)

    def _look_at_peak(self) -> None:
        if self._live > self._peak:
            self._peak = self._live
            self._peak_by_kind = list(self._by_kind)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
