"""Give memory back to the host once a network is loaded."""

from __future__ import annotations

import ctypes
import gc

# Below this, collecting garbage costs more time than the memory is worth.
_WORTH_BYTES = 16 << 20


def give_back(loaded_bytes: int) -> None:
    """Return what loading a network of so many bytes has freed to the operating system.

    The C library keeps freed blocks for later: four times the weights stayed with the process,
    and with every rank of a host (measured, 73 MB of weights, glibc).
    """
    if loaded_bytes < _WORTH_BYTES:
        return
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    trim(0)
