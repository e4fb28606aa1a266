"""Compare the records (`--result_json`) of two runs: same verdicts, same bounds bit for bit?

Usage: python scripts/compare_runs.py ONE.json OTHER.json

Prints a line per instance and the parameter bytes per rank of both runs. Exit code 0 if every
verdict and every bound is equal, 1 if one differs or if there is no bound to compare.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def read_records(path: Path) -> list[Record]:
    """Return the records of one run, in the order of its instances.

    Raises:
        ValueError: if the file does not hold a list of records.
    """
    records = json.loads(path.read_text())
    if not isinstance(records, list):
        raise ValueError(f"{path}: expected a list of records, got a {type(records).__name__}")
    return records


def differences(one: Record, other: Record) -> Iterator[str]:
    """Yield what differs between two records of one instance.

    Bounds are compared as the numbers they are: JSON holds the shortest text that reads back as
    the same double, so equal numbers here are equal bits there.
    """
    for key in ("onnx", "vnnlib", "verdict"):
        if one[key] != other[key]:
            yield f"{key} {one[key]} / {other[key]}"
    for method in sorted(one["bounds"].keys() | other["bounds"].keys()):
        first, second = one["bounds"].get(method, []), other["bounds"].get(method, [])
        if len(first) != len(second):
            yield f"{method}: {len(first)} / {len(second)} bounds"
        unequal = sum(a != b for a, b in zip(first, second, strict=False))
        if unequal:
            yield f"{method}: {unequal} of {len(first)} bounds differ"


def num_bounds(records: Sequence[Record]) -> int:
    """Return how many bounds `records` hold in all."""
    return sum(len(bounds) for record in records for bounds in record["bounds"].values())


def parameter_line(label: str, record: Record) -> str:
    """Return a line saying how many bytes of parameters each rank held for this instance."""
    parameters = record["parallel"]["parameters"]
    per_rank = ", ".join(f"{count:,}" for count in parameters["bytes_per_rank"])
    return f"{label}: {per_rank} bytes of {parameters['full_bytes']:,}"


def print_parameters(one: Sequence[Record], other: Sequence[Record]) -> None:
    """Print the parameter bytes per rank of each network, in both runs."""
    shown = set()
    for first, second in zip(one, other, strict=True):
        if first["onnx"] in shown:
            continue
        shown.add(first["onnx"])
        print(f"parameters of {first['onnx']}")
        for record in (first, second):
            print("  " + parameter_line(f"world size {record['parallel']['world_size']}", record))


def main() -> int:
    """Compare the two runs named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the records of two runs.")
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    arguments = parser.parse_args()
    one, other = read_records(arguments.one), read_records(arguments.other)
    if len(one) != len(other):
        print(f"DIFFERENT: {len(one)} records against {len(other)}")
        return 1
    unequal = 0
    for first, second in zip(one, other, strict=True):
        found = list(differences(first, second))
        unequal += bool(found)
        outcome = "DIFFERENT: " + "; ".join(found) if found else "equal"
        print(f"{first['verdict']:8s} {outcome:10s} {Path(first['vnnlib']).name}")
    print_parameters(one, other)
    compared = num_bounds(one)
    if unequal or not compared:
        print(f"{unequal} of {len(one)} instances differ; {compared} bounds were compared")
        return 1
    print(f"verdicts equal ({len(one)} instances), bounds equal bit for bit ({compared} numbers)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
