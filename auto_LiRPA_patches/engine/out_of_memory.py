"""Go on where memory ran out: with fewer rows at a time.

A row's bound does not depend on which others are computed beside it but for rounding, so a chunk
may be bounded piece by piece. That is done where no other rank takes part in a pass: with weights
or layers shared, the others would wait for this one in the middle of it. In tiles bits depend on
the height, and it is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.options import BoundOptions

# torch's CPU allocator has no class of its own for it.
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether less at a time might work where `error` came up."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)


class Halving:
    """How many rows of one node are computed at a time: half of those that memory did not hold."""

    def __init__(self, place: str, options: BoundOptions) -> None:
        """All rows at a time at first; `place` is where they start, for messages."""
        self._place = place
        self._told = options.told
        self._may = options.alone and options.tile_rows is None
        self._most: int | None = None

    def run(self, compute: Callable[[int, int], Tensor], rows: int) -> Tensor:
        """``compute(start, stop)`` of consecutive pieces of ``0 .. rows``, put together.

        Raises:
            what `compute` raises, also for want of memory where it may not or cannot be halved.
        """
        parts: list[Tensor] = []
        start = 0
        while not parts or start < rows:
            stop = rows if self._most is None else min(start + self._most, rows)
            part = self._piece(compute, start, stop)
            if part is not None:
                parts.append(part)
                start = stop
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def shrink(self, rows: int) -> bool:
        """From now on half as many at a time, of at most `rows`; False if that is not possible."""
        most = rows if self._most is None else min(rows, self._most)
        if not self._may or most < 2:
            return False
        self._most = most // 2
        self._told(f"memory ran out: {self._most} rows of {self._place} at a time from now on")
        return True

    def _piece(self, compute: Callable[[int, int], Tensor], start: int, stop: int) -> Tensor | None:
        """The rows of one piece; None where half as many are to be tried."""
        try:
            return compute(start, stop)
        except Exception as error:
            if not self._may or stop - start < 2 or not ran_out_of_memory(error):
                raise
        # Only now is the error forgotten, and with it the frames that hold what was computed.
        self.shrink(stop - start)
        return None
