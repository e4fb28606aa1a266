"""Memory that a profile does not have to fault in."""

from __future__ import annotations

import ctypes

# Numbers of <malloc.h>.
_TRIM_THRESHOLD = -1
_NEVER = (1 << 31) - 1
_BLOCK = 16 << 20  # below the size that `keep_freed_memory` lets the C library map by itself


def touch_memory(num_bytes: int) -> None:
    """Fault in so much memory and keep it, free, to the end of the process; glibc only.

    A profiler's records lie between the tensors of the work it watches, so that these are pushed
    into fresh pages without end: a tenth of that work's time, which it does not take unwatched.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    blocks = [bytearray(_BLOCK) for _ in range(num_bytes // _BLOCK)]
    for block in blocks:
        ctypes.memset((ctypes.c_char * len(block)).from_buffer(block), 1, len(block))
