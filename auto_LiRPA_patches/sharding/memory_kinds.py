"""Say what tensors are for, so that a memory meter can break its count down.

Code that creates tensors of a kind marks them, whether or not somebody measures: a meter that is
open is found on torch's own stack of dispatch modes, which belongs to the thread, and without one a
mark costs one call into torch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode


class MemoryKind(enum.Enum):
    """What bytes are spent on; values are the names used in records."""

    WEIGHTS = "weights"
    """Parameters as they are kept: whole, or this rank's slices."""
    GATHERED = "gathered_weights"
    """Whole layers put together from all ranks' slices, in use or on their way."""
    COEFFICIENTS = "a_matrices"
    """What a backward pass of bounds makes, its temporaries and what autograd keeps included."""
    MULTIPLIERS = "alpha_beta"
    """α and β, their gradients, the optimiser's moments, and copies of the best."""
    OTHER = "other"
    """Everything else: interval bounds, pools of subproblems, attacks."""


@runtime_checkable
class KindSink(Protocol):
    """A dispatch mode that keeps count by kind."""

    kind: MemoryKind
    """Of storages that are seen for the first time from now on."""

    def recount(self, kind: MemoryKind, items: tuple[Tensor | np.ndarray, ...]) -> None:
        """Count existing tensors and arrays under `kind`."""


@contextmanager
def counted_as(kind: MemoryKind) -> Iterator[None]:
    """Count what is created inside the block under `kind`, unless it is marked otherwise."""
    sink = _sink()
    if sink is None:
        yield
        return
    outer, sink.kind = sink.kind, kind
    try:
        yield
    finally:
        sink.kind = outer


def count_as(kind: MemoryKind, *items: Tensor | np.ndarray) -> None:
    """Count existing tensors, and arrays that no tensor stands for, under `kind`."""
    sink = _sink()
    if sink is not None:
        sink.recount(kind, items)


def _sink() -> KindSink | None:
    mode = _get_current_dispatch_mode()
    if mode is None:
        return None  # asking a protocol takes longer than most marked blocks' Python
    return mode if isinstance(mode, KindSink) else None
