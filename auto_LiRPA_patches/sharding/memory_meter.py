"""Count the bytes of tensors alive on this rank, their peak, and what they are for.

On CPU every operator's results are looked at as they appear (also inside autograd's backward pass
and custom Functions), and each distinct storage counts once from then until it is freed. What no
operator returns is not seen: scratch memory inside a kernel, Python objects, and numpy arrays
unless `count_as` names them. On CUDA the allocator counts everything itself, and its counters are
used; the operators' results there only tell the breakdown.

Units: bytes. Cost: some microseconds per operator, so metering is switched on by choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_ledger import MemoryLedger


class MemoryMeter:
    """Context manager that counts tensor bytes on one device while it is open.

    ::

        with MemoryMeter() as meter:
            meter.track(*module.parameters(), kind=MemoryKind.WEIGHTS)
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
        self._baseline_by_kind = dict.fromkeys(MemoryKind, 0)

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

    @property
    def baseline_by_kind(self) -> Mapping[MemoryKind, int]:
        """`baseline_bytes` by kind; all of them."""
        return dict(self._baseline_by_kind)

    @property
    def peak_by_kind(self) -> Mapping[MemoryKind, int]:
        """`peak_bytes` by kind, at the moment of the peak; all of them."""
        return self._counter.peak_by_kind

    def track(self, *items: Tensor | np.ndarray, kind: MemoryKind = MemoryKind.OTHER) -> None:
        """Count what exists already under `kind`, each storage once however many views there are.

        On CUDA the allocator knows of it, and only the breakdown is told.
        """
        self._counter.recount(items, kind)

    def mark_baseline(self) -> None:
        """Take the present level as baseline, and measure the peak from here on."""
        self._baseline = self._counter.live
        self._baseline_by_kind = dict(self._counter.live_by_kind)
        self._counter.restart_peak()


class _Counter(Protocol):
    """How bytes are counted on one kind of device."""

    @property
    def live(self) -> int: ...

    @property
    def peak(self) -> int: ...

    @property
    def live_by_kind(self) -> Mapping[MemoryKind, int]: ...

    @property
    def peak_by_kind(self) -> Mapping[MemoryKind, int]: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def recount(self, items: Iterable[Tensor | np.ndarray], kind: MemoryKind) -> None: ...

    def restart_peak(self) -> None: ...


class _ResultWatch(TorchDispatchMode):
    """Show every tensor that an operator returns to a ledger."""

    def __init__(self, ledger: MemoryLedger) -> None:
        super().__init__()
        self._ledger = ledger
        self.kind = MemoryKind.OTHER

    def recount(self, kind: MemoryKind, items: tuple[Tensor | np.ndarray, ...]) -> None:
        """Count existing tensors and arrays under `kind`; see `count_as`."""
        self._ledger.recount(items, kind)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.is_inference_mode_enabled():
            # There an operator made of others arrives whole, and what it makes on the way unseen.
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = func(*args, **(kwargs or {}))
        self._ledger.see(_tensors_in(result), self.kind)
        return result


class _CpuCounter:
    """Watch operators' results; a weak reference to each storage tells when it is freed."""

    def __init__(self) -> None:
        self._ledger = MemoryLedger("cpu")
        self._watch = _ResultWatch(self._ledger)

    @property
    def live(self) -> int:
        return self._ledger.live

    @property
    def peak(self) -> int:
        return self._ledger.peak

    @property
    def live_by_kind(self) -> Mapping[MemoryKind, int]:
        return self._ledger.live_by_kind

    @property
    def peak_by_kind(self) -> Mapping[MemoryKind, int]:
        return self._ledger.peak_by_kind

    def open(self) -> None:
        self._watch.__enter__()

    def close(self) -> None:
        self._watch.__exit__(None, None, None)
        self._ledger.close()

    def recount(self, items: Iterable[Tensor | np.ndarray], kind: MemoryKind) -> None:
        self._ledger.recount(items, kind)

    def restart_peak(self) -> None:
        self._ledger.restart_peak()


class _CudaCounter:
    """Read the caching allocator's own counters; the watch only tells what the bytes are for.

    What the allocator counts and no operator returned (scratch memory, rounding up) is `OTHER`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._final: tuple[int, int] | None = None
        self._ledger = MemoryLedger("cuda")
        self._watch = _ResultWatch(self._ledger)

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

    @property
    def live_by_kind(self) -> Mapping[MemoryKind, int]:
        return _with_rest(self._ledger.live_by_kind, self.live)

    @property
    def peak_by_kind(self) -> Mapping[MemoryKind, int]:
        return _with_rest(self._ledger.peak_by_kind, self.peak)

    def open(self) -> None:
        self._final = None
        self.restart_peak()
        self._watch.__enter__()

    def close(self) -> None:
        self._watch.__exit__(None, None, None)
        self._final = (self.live, self.peak)
        self._ledger.close()

    def recount(self, items: Iterable[Tensor | np.ndarray], kind: MemoryKind) -> None:
        self._ledger.recount(items, kind)

    def restart_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._ledger.restart_peak()


def _with_rest(by_kind: Mapping[MemoryKind, int], total: int) -> Mapping[MemoryKind, int]:
    """The breakdown with `OTHER` made up to the total."""
    rest = total - sum(by_kind.values())
    return {**by_kind, MemoryKind.OTHER: by_kind[MemoryKind.OTHER] + rest}


def _tensors_in(result: Any) -> Iterable[Tensor]:
    """Yield the tensors of an operator's result: one, or nested tuples and lists of them."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _tensors_in(item)
