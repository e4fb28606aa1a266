"""Memory that a profile does not have to fault in."""

from __future__ import annotations

import ctypes

from complete_verifier.heap import keep_freed_memory

_MOST = (1 << 31) - 1  # what the C library takes for "always"
_BLOCK = 16 << 20  # small enough to be kept


def touch_memory(num_bytes: int) -> None:
    """Fault in so much memory and keep it, free, to the end of the process; glibc only.

    A profiler's records lie between the tensors of the work it watches, so that these are pushed
    into fresh pages without end: a tenth of that work's time, which it does not take unwatched.
    """
    keep_freed_memory(_MOST)
    blocks = [bytearray(_BLOCK) for _ in range(num_bytes // _BLOCK)]
    for block in blocks:
        ctypes.memset((ctypes.c_char * len(block)).from_buffer(block), 1, len(block))
