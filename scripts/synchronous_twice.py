"""Run one instance twice under `bab.force_synchronous` and compare the work and the bits.

Usage: python scripts/synchronous_twice.py ONNX VNNLIB [--batch 512] [--rounds 10] [-- FLAGS ...]

Each run is a process of its own; what follows `--` is handed to both. Printed are the rounds, the
subproblems visited and left, and the bounds. Exit code 0 if all of them are equal, bounds bit for
bit; 1 if not, or if there was no branching to compare.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from own_words import own_words

ROOT = Path(__file__).resolve().parent.parent
_COUNTS = ("rounds", "domains_visited", "domains_left", "lower_bound")


def run(options: argparse.Namespace, flags: Sequence[str]) -> dict[str, Any]:
    """The record of one run.

    Raises:
        subprocess.CalledProcessError: the run ended without one.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        words = [
            *(sys.executable, str(ROOT / "abcrown.py"), "--force_synchronous"),
            *("--onnx_path", str(options.onnx), "--vnnlib_path", str(options.vnnlib)),
            *("--complete_verifier", "bab", "--pgd_order", "skip", "--device", "cpu"),
            *("--batch_size", str(options.batch), "--max_iterations", str(options.rounds)),
            *("--iteration", str(options.iterations), "--timeout", "36000"),
            *("--results_file", str(Path(folder) / "results.txt"), "--result_json", str(record)),
            *flags,
        ]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        records = json.loads(record.read_text(encoding="utf-8"))
    found: dict[str, Any] = records[0]
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs, a line each; JSON numbers read back as the doubles they were."""
    lines = [
        f"{name}: {one['bab'][name]!r} against {other['bab'][name]!r}"
        for name in _COUNTS
        if one["bab"][name] != other["bab"][name]
    ]
    lines += [
        f"{name} bounds" for name in one["bounds"] if one["bounds"][name] != other["bounds"][name]
    ]
    if one["verdict"] != other["verdict"]:
        lines.append(f"verdict: {one['verdict']} against {other['verdict']}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two runs of the instance on the command line."""
    own, flags = own_words(arguments)
    parser = argparse.ArgumentParser(description="Run one instance twice and compare the bits.")
    parser.add_argument("onnx", type=Path)
    parser.add_argument("vnnlib", type=Path)
    parser.add_argument("--batch", type=int, default=512, help="subproblems split per round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=20, help="steps on α and β")
    options = parser.parse_args(own)
    one, other = (run(options, flags) for _ in range(2))
    for record in (one, other):
        print(
            {name: record["bab"][name] for name in _COUNTS}, f"{record['seconds']['total']:.1f} s"
        )
    found = differences(one, other)
    if not one["bab"]["domains_visited"]:
        found.append("no subproblem was visited")
    print("\n".join(found) or "equal bit for bit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
