"""How much memory of this host the process can still have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Group:
    """Where a version of control groups keeps a container's limit and what counts against it."""

    limit: str
    used: str
    stat: str
    reclaimable: str


_VERSIONS = (
    _Group("memory.max", "memory.current", "memory.stat", "inactive_file"),
    _Group(
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def available_host_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes this process can still allocate: free memory, or less under a container's limit.

    Files once read count against the limit until the kernel needs their pages; it gives those up
    first, so they are free.

    Args:
        cgroup: where control groups are mounted, of either version.
    """
    free = int(psutil.virtual_memory().available)
    for version in _VERSIONS:
        limit, used = _number(cgroup / version.limit), _number(cgroup / version.used)
        if limit is not None and used is not None:
            cached = _entry(cgroup / version.stat, version.reclaimable)
            return max(0, min(free, limit - used + min(cached, used)))
    return free


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):  # no such control group, or "max"
        return None


def _entry(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[:1] == [name])
    except (OSError, ValueError, IndexError, StopIteration):  # then nothing is known to be free
        return 0
