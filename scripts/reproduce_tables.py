"""Measure an experiment of the published tables, and show it beside the paper's figures.

    python scripts/reproduce_tables.py 5                  # CPU cores, at most 15 minutes
    python scripts/reproduce_tables.py 4 6 8 --scale paper # GPUs
    python scripts/reproduce_tables.py 5 --only 4096x8
    python scripts/reproduce_tables.py 5 --only 8192x4 --resume
    python scripts/reproduce_tables.py modes              # memory and time of each parallel mode
    python scripts/reproduce_tables.py memory rate        # plots over 1, 2, 4 and 8 ranks

Starts its own processes and ranks (torchrun). Writes expN.md, expN.csv and, where matplotlib is
installed (the extra "plots"), expN.png below --folder; records of whole verifications lie beside.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tables import (
    experiment1,
    experiment2,
    experiment4,
    experiment5,
    experiment6,
    experiment7,
    experiment8,
    modes,
    scaling,
)
from tables.ranks import ROOT, RunFailedError, Setting
from tables.table import Table

EXPERIMENTS: dict[str, Callable[[Setting], Table]] = {
    "1": experiment1.run,
    "2": experiment2.run,
    "3": experiment2.run_alpha,
    "4": experiment4.run,
    "5": experiment5.run,
    "6": experiment6.run,
    "7": experiment7.run,
    "8": experiment8.run,
    "modes": modes.run,
    "memory": scaling.memory,
    "rate": scaling.rate,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments of the command line; exit code 1 if one of them failed."""
    parser = argparse.ArgumentParser(description="Measure experiments of the published tables.")
    parser.add_argument("experiments", nargs="+", choices=sorted(EXPERIMENTS))
    parser.add_argument("--scale", choices=("small", "paper"), default="small")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "tables")
    parser.add_argument("--only", action="append", default=[], metavar="ROW")
    parser.add_argument("--threads", type=int, default=1, help="per rank")
    parser.add_argument(
        "--benchmarks",
        type=Path,
        default=ROOT.parent / "shared" / "benchmarks",
        help="folder with vnncomp2021, vnncomp2022, vnncomp2023",
    )
    parser.add_argument("--resume", action="store_true", help="keep what --folder has of a run")
    options = parser.parse_args(arguments)
    setting = Setting(
        scale=options.scale,
        folder=options.folder.resolve(),
        benchmarks=options.benchmarks.resolve(),
        threads=options.threads,
        only=tuple(options.only),
        resume=options.resume,
    )
    failed = False
    for number in options.experiments:
        print(f"experiment {number}, {options.scale} scale", flush=True)
        try:
            table = EXPERIMENTS[number](setting)
        except RunFailedError as error:
            print(f"experiment {number} failed: {error}", file=sys.stderr)
            failed = True
            continue
        print(f"\n{table.text}")
        print("\n".join(f"written: {path}" for path in table.write(setting.folder)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
