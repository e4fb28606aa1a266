"""Ask for the same verdicts on 1, 2, 3 and 4 ranks, over instances of several categories.

Usage: python scripts/same_verdicts.py BENCHMARKS RESULTS [--ranks 1 2 3 4] [--limit 60]
           [--only acasxu ...] [--no_run] [-- FLAGS OF abcrown.py]

BENCHMARKS holds vnncomp2021/CATEGORY, vnncomp2022/CATEGORY, ...; the digits example is always
there. Each category's instances are taken evenly from its list; mnist_fc_tp is ten that are proven
and five with a counterexample, with neurons split over all ranks. The limit is the seconds that one
instance may take on as many ranks as there are cores; where ranks share cores it is longer in
proportion. A run that was broken off goes on where it stopped.

Prints a row per instance. Exit code 1 if two numbers of ranks answer otherwise, if some leave open
what the fewest ranks answer, if a `sat` does not replay, if an instance ended in an error or has no
record, or if a category is not there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from category_batch import CategoryBatch
from own_words import own_words

from auto_LiRPA_patches.errors import VerifierError
from complete_verifier.replay import replays
from complete_verifier.results.compare import names_same_file
from complete_verifier.results.record_file import read_records

ROOT = Path(__file__).resolve().parent.parent
_ANSWERS = ("sat", "unsat")


@dataclass(frozen=True)
class Category:
    """Instances of one category.

    Attributes:
        name: of the category.
        config: below exp_configs.
        folder: below the benchmarks; None for the embedded example.
        count: how many of its instances are taken.
        flags: besides those of the config.
        places: of the instances in its list; none = evenly spaced.
    """

    name: str
    config: str
    folder: str | None
    count: int
    flags: tuple[str, ...] = ()
    places: tuple[int, ...] = ()

    def lines(self, benchmarks: Path) -> list[str]:
        """Its rows of instances.csv."""
        text = (self.root(benchmarks) / "instances.csv").read_text(encoding="utf-8")
        every = [line for line in text.splitlines() if line.strip()]
        evenly = (place * len(every) // self.count for place in range(self.count))
        places = self.places or tuple(evenly)
        return [every[place] for place in dict.fromkeys(places)]

    def root(self, benchmarks: Path) -> Path:
        """The folder that the rows' paths start from."""
        return ROOT / "exp_configs" / "digits" if self.folder is None else benchmarks / self.folder


_PROVEN = (0, 3, 4, 11, 16, 18, 20, 32, 34, 35)
_VIOLATED = (1, 12, 17, 25, 41)

CATEGORIES = (
    Category("acasxu", "vnncomp22/acasxu.yaml", "vnncomp2022/acasxu", 13),
    Category("mnist_fc", "vnncomp22/mnist_fc.yaml", "vnncomp2022/mnist_fc", 10),
    Category(
        "mnist_fc_tp",
        "vnncomp22/mnist_fc.yaml",
        "vnncomp2022/mnist_fc",
        15,
        ("--tp", "true"),
        _PROVEN + _VIOLATED,
    ),
    Category("oval21", "vnncomp22/oval21.yaml", "vnncomp2022/oval21", 6),
    Category("cifar10_resnet", "vnncomp21/cifar10_resnet.yaml", "vnncomp2021/cifar10_resnet", 7),
    Category("rl_benchmarks", "vnncomp22/rl_benchmarks.yaml", "vnncomp2022/rl_benchmarks", 12),
    Category("digits", "digits/digits.yaml", None, 12, ("--complete_verifier", "auto")),
)


@dataclass(frozen=True)
class Run:
    """One category on so many ranks, and where its results lie."""

    category: Category
    ranks: int
    benchmarks: Path
    results: Path

    @property
    def records(self) -> Path:
        """The records of its instances."""
        return self.results / f"{self.category.name}-{self.ranks}.json"

    def start(self, limit: float, flags: Sequence[str]) -> None:
        """Run what is left of it."""
        crowding = max(1.0, self.ranks / (os.cpu_count() or 1))
        rows = [line.rsplit(",", 1)[0] for line in self.category.lines(self.benchmarks)]
        config = ROOT / "exp_configs" / self.category.config
        batch = CategoryBatch(config, self.category.root(self.benchmarks), self.records)
        lines = [f"{row},{limit * crowding:g}" for row in rows]
        batch.run(lines, (*self.category.flags, *flags), self.ranks)

    def found(self) -> list[Mapping[str, Any] | None]:
        """The record of each of its instances, None where there is none."""
        records = read_records(self.records) if self.records.exists() else ()
        return [_record_of(line, records) for line in self.category.lines(self.benchmarks)]


def _record_of(line: str, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The record of a row of instances.csv."""
    onnx, vnnlib = (part.strip() for part in line.split(",")[:2])
    for record in records:
        if names_same_file(record["onnx"], onnx) and names_same_file(record["vnnlib"], vnnlib):
            return record
    return None


def faults(records: Sequence[Mapping[str, Any] | None], ranks: Sequence[int]) -> Iterator[str]:
    """What is wrong with one instance's records, one for each number of ranks."""
    verdicts = [None if record is None else str(record["verdict"]) for record in records]
    if len({verdict for verdict in verdicts if verdict in _ANSWERS}) > 1:
        yield "OPPOSITE ANSWERS"
    failed = [ranks[i] for i, verdict in enumerate(verdicts) if verdict in (None, "error")]
    if failed:
        yield f"NO VERDICT of {', '.join(map(str, failed))} ranks"
    if verdicts[0] in _ANSWERS:
        lost = [ranks[i] for i, verdict in enumerate(verdicts) if verdict not in _ANSWERS]
        if lost:
            yield f"LOST on {', '.join(map(str, lost))} ranks"
    for record, count in zip(records, ranks, strict=True):
        if record is not None and record["verdict"] == "sat" and not _replays(record):
            yield f"sat of {count} ranks DOES NOT REPLAY"


def _replays(record: Mapping[str, Any]) -> bool:
    file = record.get("counterexample")
    try:
        return file is not None and replays(
            Path(record["onnx"]), Path(record["vnnlib"]), Path(str(file))
        )
    except VerifierError:
        return False


def compare(runs: Sequence[Run]) -> tuple[int, int]:
    """Print a category's rows, one run for each number of ranks; instances, and those at fault."""
    category, ranks = runs[0].category, [run.ranks for run in runs]
    lines = category.lines(runs[0].benchmarks)
    bad = 0
    for line, *records in zip(lines, *(run.found() for run in runs), strict=True):
        wrong = list(faults(records, ranks))
        bad += bool(wrong)
        cells = [
            "missing" if r is None else f"{r['verdict']} {r['seconds']['total']:.1f} s"
            for r in records
        ]
        name = " ".join(Path(part).name for part in line.split(",")[:2])
        print(f"| {category.name} {name} | {' | '.join(cells)} | {'; '.join(wrong)} |")
    return len(lines), bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare; the exit code."""
    words, flags = own_words(arguments)
    parser = argparse.ArgumentParser(description="The same verdicts on any number of ranks.")
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--only", nargs="+", default=[], metavar="CATEGORY")
    parser.add_argument("--no_run", action="store_true", help="only compare what is there")
    options = parser.parse_args(words)
    options.results.mkdir(parents=True, exist_ok=True)
    chosen = [own for own in CATEGORIES if not options.only or own.name in options.only]
    print(f"| instance | {' | '.join(f'P = {count}' for count in sorted(options.ranks))} | |")
    print("|---" * (len(options.ranks) + 2) + "|")
    total = bad = 0
    for category in chosen:
        if category.folder is not None and not (options.benchmarks / category.folder).is_dir():
            print(f"{category.name}: {options.benchmarks / category.folder} is not there")
            bad += 1
            continue
        where = (options.benchmarks.resolve(), options.results.resolve())
        runs = [Run(category, count, *where) for count in sorted(options.ranks)]
        if not options.no_run:
            for run in runs:
                run.start(options.limit, flags)
        instances, wrong = compare(runs)
        total, bad = total + instances, bad + wrong
        sys.stdout.flush()
    print(f"{total} instances, {bad} at fault")
    return int(bad > 0 or total == 0)


if __name__ == "__main__":
    sys.exit(main())
