"""What a container's limit leaves is read from control groups of both versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from complete_verifier.bounds.host_memory import available_host_bytes

FREE = int(psutil.virtual_memory().total) + 1  # a limit above it does not count
MIB = 1 << 20


def _mounted(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


VERSION_2 = {
    "memory.max": f"{64 * MIB}\n",
    "memory.current": f"{63 * MIB}\n",
    "memory.stat": f"anon {2 * MIB}\nfile {61 * MIB}\ninactive_file {60 * MIB}\n",
}
VERSION_1 = {
    "memory/memory.limit_in_bytes": f"{64 * MIB}\n",
    "memory/memory.usage_in_bytes": f"{24 * MIB}\n",
    "memory/memory.stat": f"inactive_file 0\ntotal_inactive_file {8 * MIB}\n",
}


@pytest.mark.parametrize(("files", "left"), [(VERSION_2, 61 * MIB), (VERSION_1, 48 * MIB)])
def test_the_limit_less_what_cannot_be_reclaimed_is_left(
    files: Mapping[str, str], left: int, tmp_path: Path
) -> None:
    # The likely bug: pages of files once read count as taken, and nothing seems left.
    assert available_host_bytes(_mounted(tmp_path, files)) == left


@pytest.mark.parametrize(
    ("limit", "stat"),
    [("max", "inactive_file 1\n"), (str(FREE), ""), (str(1 << 62), "inactive_file\n")],
)
def test_without_a_limit_free_memory_counts(tmp_path: Path, limit: str, stat: str) -> None:
    files = {"memory.max": limit, "memory.current": "0", "memory.stat": stat}
    free = psutil.virtual_memory().available
    assert available_host_bytes(_mounted(tmp_path, files)) == pytest.approx(free, rel=0.2)


def test_a_limit_that_is_used_up_leaves_nothing(tmp_path: Path) -> None:
    files = {"memory.max": str(MIB), "memory.current": str(2 * MIB)}
    assert available_host_bytes(_mounted(tmp_path, files)) == 0
    assert available_host_bytes(tmp_path / "no such folder") > 0
