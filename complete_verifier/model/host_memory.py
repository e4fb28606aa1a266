"""Give memory back to the host while a network is loaded, and once it is."""

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
    trim()


def trim() -> None:
    """Return what is free already; without garbage it takes a tenth of a millisecond.

    onnxruntime leaves up to two copies of the weights behind (measured, 64 MiB of weights).
    """
    try:
        trim_heap = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    trim_heap(0)
