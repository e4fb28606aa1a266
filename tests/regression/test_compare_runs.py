"""scripts/compare_runs.py: the last word of the quickstart must not be able to lie.

A failure means that the quickstart would call two runs equal that are not.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_runs.py"


def records(world_size: int) -> list[dict[str, Any]]:
    """Return two records of a run on `world_size` ranks, with the keys that are compared."""
    parameters = {"full_bytes": 4000, "bytes_per_rank": [4000 // world_size] * world_size}
    bounds = {"crown": [0.1, -2.5], "alpha_crown": [0.30000001192092896]}
    return [
        {
            "onnx": "onnx/mlp.onnx",
            "vnnlib": f"vnnlib/{index}.vnnlib",
            "verdict": verdict,
            "bounds": copy.deepcopy(bounds),
            "parallel": {"world_size": world_size, "parameters": parameters},
        }
        for index, verdict in enumerate(["unsat", "unknown"])
    ]


def compare(folder: Path, one: list[Any], other: list[Any]) -> subprocess.CompletedProcess:
    paths = [folder / "one.json", folder / "other.json"]
    for path, run in zip(paths, [one, other], strict=True):
        path.write_text(json.dumps(run))
    command = [sys.executable, str(SCRIPT), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_equal_runs_are_called_equal_with_the_bytes_per_rank(tmp_path: Path) -> None:
    result = compare(tmp_path, records(1), records(2))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "world size 1: 4,000 bytes of 4,000" in lines
    assert "world size 2: 2,000, 2,000 bytes of 4,000" in lines
    assert lines[-1] == "verdicts equal (2 instances), bounds equal bit for bit (6 numbers)"


def test_one_unit_in_the_last_place_of_one_bound_is_a_difference(tmp_path: Path) -> None:
    other = records(2)
    other[1]["bounds"]["crown"][0] = math.nextafter(0.1, 1)
    result = compare(tmp_path, records(1), other)
    assert result.returncode == 1 and "crown: 1 of 2 bounds differ" in result.stdout


def test_a_shorter_list_of_equal_bounds_is_a_difference(tmp_path: Path) -> None:
    other = records(2)
    other[0]["bounds"]["crown"].pop()
    result = compare(tmp_path, records(1), other)
    assert result.returncode == 1 and "crown: 2 / 1 bounds" in result.stdout


def test_a_method_that_only_one_run_has_is_a_difference(tmp_path: Path) -> None:
    one = records(1)
    del one[0]["bounds"]["alpha_crown"]
    result = compare(tmp_path, one, records(2))
    assert result.returncode == 1 and "alpha_crown: 0 / 1 bounds" in result.stdout


@pytest.mark.parametrize("key", ["verdict", "vnnlib", "onnx"])
def test_another_verdict_or_instance_is_a_difference(key: str, tmp_path: Path) -> None:
    other = records(2)
    other[0][key] = "something else"
    result = compare(tmp_path, records(1), other)
    assert result.returncode == 1 and "DIFFERENT: " + key in result.stdout


def test_a_missing_record_is_a_difference(tmp_path: Path) -> None:
    assert compare(tmp_path, records(1), records(2)[:1]).returncode == 1


def test_runs_without_any_bound_are_not_called_equal(tmp_path: Path) -> None:
    one, other = records(1), records(2)
    for record in [*one, *other]:
        record["bounds"] = {}
    result = compare(tmp_path, one, other)
    assert result.returncode == 1 and "0 bounds were compared" in result.stdout
