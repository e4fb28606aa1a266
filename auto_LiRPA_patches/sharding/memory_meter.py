"""Count the bytes of tensors alive on this rank, and their peak.

On CPU every operator's results are looked at as they appear (also inside autograd's backward pass
and custom Functions), and each distinct storage counts once from then until it is freed. What no
operator returns is not seen: scratch memory inside a kernel, Python and numpy objects. On CUDA the
allocator counts everything itself, and its counters are used.

Units: bytes. Cost on CPU: some microseconds per operator, so metering is switched on by choice.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryMeter:
    """Context manager that counts tensor bytes on one device while it is open.

    ::

        with MemoryMeter() as meter:
            meter.track(*module.parameters())
            meter.mark_baseline()
            work()
        print(meter.baseline_bytes, meter.peak_bytes)

    The numbers stay readable after the block, as they were at its end.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Meter `device`; other devices' tensors are not counted."""
        device = torch.device(device)
        self._counter: _Counter = _CudaCounter(device) if device.type == "cuda" else _CpuCounter()
        self._baseline = 0

    def __enter__(self) -> MemoryMeter:
        self._counter.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._counter.close()

    @property
    def live_bytes(self) -> int:
        """Bytes of the counted storages alive now."""
        return self._counter.live

    @property
    def peak_bytes(self) -> int:
        """Largest `live_bytes` since the block began or the baseline was marked."""
        return self._counter.peak

    @property
    def baseline_bytes(self) -> int:
        """`live_bytes` when `mark_baseline` was last called; 0 before."""
        return self._baseline

    def track(self, *tensors: Tensor) -> None:
        """Count tensors that exist already, each storage once however many views are given."""
        self._counter.see(tensors)

    def mark_baseline(self) -> None:
        """Take the present level as baseline, and measure the peak from here on."""
        self._baseline = self._counter.live
        self._counter.restart_peak()


class _Counter(Protocol):
    """How bytes are counted on one kind of device."""

    @property
    def live(self) -> int: ...

    @property
    def peak(self) -> int: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def see(self, tensors: Iterable[Tensor]) -> None: ...

    def restart_peak(self) -> None: ...


class _CpuCounter:
    """Watch operators' results; a weak reference to each storage tells when it is freed."""

    def __init__(self) -> None:
        self._live = 0
        self._peak = 0
        # Storages may be freed by another thread (gloo's, holding the last reference for a moment)
        # or in the middle of a count: their keys wait here until the counting thread looks.
        self._freed: deque[int] = deque()
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._watch = _ResultWatch(self)

    @property
    def live(self) -> int:
        self._subtract_freed()
        return self._live

    @property
    def peak(self) -> int:
        return self._peak

    def open(self) -> None:
        self._watch.__enter__()

    def close(self) -> None:
        self._watch.__exit__(None, None, None)
        self._subtract_freed()
        self._storages.clear()  # the weak references' callbacks go with them: numbers freeze
        self._freed.clear()

    def see(self, tensors: Iterable[Tensor]) -> None:
        self._subtract_freed()  # before any look-up: a freed storage's id may be in use again
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                self._see_storage(tensor.untyped_storage())
        self._peak = max(self._peak, self._live)

    def restart_peak(self) -> None:
        self._peak = self.live

    def _see_storage(self, storage: torch.UntypedStorage) -> None:
        # torch keeps the Python object of a storage as long as the storage itself, so its id
        # names the storage until its key is among the freed.
        key, num_bytes = id(storage), storage.nbytes()
        known = self._storages.get(key)
        if known is None:
            reference = weakref.ref(storage, lambda _: self._freed.append(key))
            counted = 0
        else:
            reference, counted = known
        if num_bytes != counted or known is None:  # new, or resized since
            self._storages[key] = (reference, num_bytes)
            self._live += num_bytes - counted

    def _subtract_freed(self) -> None:
        while self._freed:
            self._live -= self._storages.pop(self._freed.popleft())[1]


class _ResultWatch(TorchDispatchMode):
    """Show every tensor that an operator returns to a counter."""

    def __init__(self, counter: _CpuCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._counter.see(_tensors_in(result))
        return result


class _CudaCounter:
    """Read the caching allocator's own counters; what they count needs no tracking."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._final: tuple[int, int] | None = None

    @property
    def live(self) -> int:
        if self._final is not None:
            return self._final[0]
        return torch.cuda.memory_stats(self._device).get("allocated_bytes.all.current", 0)

    @property
    def peak(self) -> int:
        if self._final is not None:
            return self._final[1]
        return torch.cuda.memory_stats(self._device).get("allocated_bytes.all.peak", 0)

    def open(self) -> None:
        self._final = None
        self.restart_peak()

    def close(self) -> None:
        self._final = (self.live, self.peak)

    def see(self, tensors: Iterable[Tensor]) -> None:
        return None

    def restart_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)


def _tensors_in(result: Any) -> Iterable[Tensor]:
    """Yield the tensors of an operator's result: one, or nested tuples and lists of them."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors_in(item)
