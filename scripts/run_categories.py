"""Run VNN-COMP categories with their configs of `exp_configs`, and write a results page.

Usage: python scripts/run_categories.py BENCHMARKS RESULTS [--only vnncomp22/acasxu ...]
           [--limit 120] [--page RESULTS.md] [-- FLAGS OF abcrown.py]

BENCHMARKS holds vnncomp2021/CATEGORY, vnncomp2022/CATEGORY, ... as the competition publishes them.
Each category with a config and an expected.csv is run by `run_batch.py --resume`, so that a run
that was broken off goes on where it stopped; timeouts are the CSV file's, but at most the limit.
RESULTS gets one JSON file of records and one log per category. The page is made from what is there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from category_batch import CategoryBatch
from own_words import own_words

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.compare import Comparison, compare, read_expected
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record_file import read_records
from complete_verifier.score import Score, name_of, score

ROOT = Path(__file__).resolve().parent.parent


_HEAD = """# Results on VNN-COMP categories

Made by `scripts/run_categories.py`; one thread. *Limit*: seconds for one instance, the category's
own where that is shorter. *Solved*: answered `sat` (replayed with onnxruntime) or `unsat`. *Known*:
instances with a majority verdict among the competition's tools; *missed*: of these, not answered
here. *Conflicts*: answered otherwise than the majority. *Wrong*: refuted by a counterexample that
replays, or a `sat` that does not. Seconds include loading and the attack.

| category | limit | instances | solved | known | missed | conflicts | wrong | median s | total s |
|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Category:
    """One category: its config, its folder, and where its results go."""

    name: str
    config: Path
    folder: Path
    results: Path

    @property
    def records(self) -> Path:
        """The records of all its instances."""
        return self.results / f"{self.name.replace('/', '-')}.json"

    @property
    def batch(self) -> CategoryBatch:
        """Its runs."""
        return CategoryBatch(self.config, self.folder, self.records)

    @property
    def longest(self) -> float:
        """The longest of these limits, in seconds."""
        lines = self.batch.instances.read_text(encoding="utf-8").splitlines()
        return max(float(line.split(",")[2]) for line in lines)


def categories(benchmarks: Path, results: Path, only: Sequence[str]) -> Iterator[Category]:
    """Categories that have a config here and instances there, in the order of their names."""
    for config in sorted((ROOT / "exp_configs").glob("vnncomp*/*.yaml")):
        year = config.parent.name.removeprefix("vnncomp")
        name = f"{config.parent.name}/{config.stem}"
        # The competition of 2021 spells one folder with a dash.
        for spelling in dict.fromkeys((config.stem, config.stem.replace("_", "-"))):
            folder = benchmarks / f"vnncomp20{year}" / spelling
            if (folder / "expected.csv").exists() and (not only or name in only):
                yield Category(name, config, folder, results)


def run(category: Category, limit: float, flags: Sequence[str]) -> int:
    """Run what is left of one category; returns the batch's exit code."""
    lines = (category.folder / "instances.csv").read_text(encoding="utf-8").splitlines()
    fields = [line.split(",") for line in lines if line.strip()]
    rows = [f"{onnx},{vnnlib},{min(float(seconds), limit):g}" for onnx, vnnlib, seconds in fields]
    return category.batch.run(rows, flags)


def judge(category: Category) -> tuple[Score, tuple[Comparison, ...]]:
    """Score the records there are."""
    expected = read_expected(category.folder / "expected.csv")
    comparisons = compare(read_records(category.records), expected)
    return score(comparisons, category.results), comparisons


def page(categories: Sequence[Category]) -> str:
    """The results page in Markdown."""
    table, details = [], []
    for category in categories:
        if not category.records.exists():
            continue
        result, comparisons = judge(category)
        counts = (result.instances, result.solved, result.known, result.missed)
        faults = (len(result.conflicts), len(result.wrong))
        figures = [f"{category.longest:g}", *map(str, (*counts, *faults))]
        figures += [f"{_median(comparisons):.1f}", f"{result.seconds:.0f}"]
        table.append(f"| {category.name} | {' | '.join(figures)} |")
        details += [f"\n## {category.name}\n", *_rows(comparisons)]
        details += [f"\nWRONG: {text}" for text in result.wrong]
        details += [f"\nNot replayed: {text}" for text in result.unreplayed]
    return "\n".join([_HEAD, *table, *details]) + "\n"


def _median(comparisons: Sequence[Comparison]) -> float:
    seconds = sorted(item.seconds for item in comparisons if item.seconds is not None)
    return seconds[len(seconds) // 2] if seconds else 0.0


def _rows(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield "| here | majority | tools sat | tools unsat | s | instance |\n|---|---|---|---|---|---|"
    for item in comparisons:
        votes = item.expectation
        seconds = "" if item.seconds is None else f"{item.seconds:.1f}"
        yield (
            f"| {item.verdict or ''} | {votes.verdict} | {votes.tools_sat} | {votes.tools_unsat} | "
            f"{seconds} | {name_of(item)} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and score; returns 1 where an answer is wrong or a batch broke off."""
    words, flags = own_words(arguments)
    parser = argparse.ArgumentParser(description="Run VNN-COMP categories and write a page.")
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="CATEGORY")
    parser.add_argument("--limit", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--no_run", action="store_true", help="only score what is there")
    options = parser.parse_args(words)
    options.results.mkdir(parents=True, exist_ok=True)
    benchmarks, results = options.benchmarks.resolve(), options.results.resolve()
    chosen = list(categories(benchmarks, results, options.only))
    if not chosen:
        print(
            f"{benchmarks}: expected folders such as vnncomp2022/acasxu with an expected.csv and a "
            "config in exp_configs, found none"
            + (f" of {', '.join(options.only)}" if options.only else ""),
            file=sys.stderr,
        )
        return 2
    worst = 0
    try:
        for category in chosen:
            if not options.no_run:
                worst = max(worst, run(category, options.limit, flags))
            if category.records.exists():
                result, _ = judge(category)
                worst = max(worst, int(bool(result.wrong)))
                print(
                    f"{category.name}: {result.solved} of {result.instances} solved, "
                    f"{result.missed} of {result.known} known missed, {len(result.conflicts)} "
                    f"conflicts, {len(result.wrong)} wrong, {result.seconds:.0f} s",
                    flush=True,
                )
        if options.page is not None:
            every = list(categories(benchmarks, results, []))
            write_text_atomically(options.page, page(every))
    except ResultError as error:
        print(error, file=sys.stderr)
        return 2
    return worst


if __name__ == "__main__":
    sys.exit(main())
