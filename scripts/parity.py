"""Compare the bounds of sharded weights with those of one rank, byte for byte.

    python scripts/parity.py                        # everything, on 2, 3 and 4 ranks
    python scripts/parity.py --ranks 2 --only mnist

One thread per rank. Prints a table: per network and method `equal`, or how many bytes differ.
Exit code 1 if any differs or nothing was compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from parity_cases import CASES, Found, available, compute
from rank_processes import RankProcesses


def differences(alone: Found, found: list[Found]) -> dict[str, str]:
    """Per method `equal`, or how the first rank that differs does."""
    outcome = {}
    for method, expected in alone.items():
        outcome[method] = "equal"
        for rank, own in enumerate(found):
            wrong = sum(a != b for a, b in zip(expected, own[method], strict=False))
            wrong += abs(len(expected) - len(own[method]))
            if wrong:
                outcome[method] = f"{wrong} of {len(expected)} bytes differ on rank {rank}"
                break
    return outcome


def main() -> int:
    """Run the chosen cases; returns the exit code."""
    parser = argparse.ArgumentParser(description="Bounds on several ranks against one rank.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--only", default="", help="part of the names to run")
    parser.add_argument("--no_prefetch", action="store_true", help="parallel.fsdp_prefetch: false")
    options = parser.parse_args()
    compared = unequal = 0
    with RankProcesses() as processes:
        for name in CASES:
            if options.only not in name:
                continue
            if not available(name):
                print(f"{name:<28} skipped: its files are not here")
                continue
            outcomes = compare(processes, name, options.ranks, prefetch=not options.no_prefetch)
            compared += len(outcomes)
            unequal += sum(outcome != "equal" for outcome in outcomes)
    print(f"{compared} comparisons, {unequal} differ")
    return int(unequal > 0 or compared == 0)


def compare(
    processes: RankProcesses, name: str, world_sizes: Sequence[int], *, prefetch: bool
) -> list[str]:
    """Run a case on one rank and on several, and print its rows of the table."""
    seconds, columns = [], []
    start = time.monotonic()
    (alone,) = processes.run(compute, 1, name)
    for world_size in world_sizes:
        seconds.append(time.monotonic() - start)
        start = time.monotonic()
        columns.append(differences(alone, processes.run(compute, world_size, name, prefetch)))
    seconds.append(time.monotonic() - start)
    for method in alone:
        cells = [
            f"{world_size} ranks: {column[method]}"
            for world_size, column in zip(world_sizes, columns, strict=True)
        ]
        print(f"{name:<28} {method:<18} {'   '.join(cells)}")
    print(
        f"{'':<28} seconds on 1, {list(world_sizes)}: {[round(s, 1) for s in seconds]}", flush=True
    )
    return [outcome for column in columns for outcome in column.values()]


if __name__ == "__main__":
    sys.exit(main())
