"""How long this process has been running: a caller's clock started with it, not with our code."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Fields of /proc/PID/stat behind the command's closing bracket; the start is field 22 of proc(5).
_START_FIELD = 22 - 3
_UNKNOWN_SECONDS = 1.0


def process_age() -> float:
    """Seconds since the process was started; a guess where the system does not tell (Linux does).

    On a busy machine, starting Python and reading its modules takes several seconds.
    """
    try:
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(text.rpartition(")")[2].split()[_START_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _UNKNOWN_SECONDS
    return age if age > 0 else _UNKNOWN_SECONDS
