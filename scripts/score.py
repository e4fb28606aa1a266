"""Hold a run's records against a competition's answers.

Usage: python scripts/score.py OUT.json EXPECTED.csv [--counterexamples FOLDER] [--require_sat N]

Prints a line per instance, then what was solved and missed, where the majority of tools said
otherwise, and the total time. Every `sat` is replayed with onnxruntime; so is every counterexample
of other tools in FOLDER ({onnx stem}_{vnnlib stem}.counterexample) against an `unsat` of ours.

Exit code 1: an `unsat` stands against a counterexample that replays, a `sat` does not replay, or a
counterexample that N tools found was missed. A majority that says otherwise is listed, and fails
nothing: majorities err. 2: a file cannot be read, or no record is about an expected instance.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from complete_verifier.results.compare import (
    Comparison,
    compare,
    missed_counterexamples,
    read_expected,
)
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record_file import read_records
from complete_verifier.score import Score, name_of, score


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a line per expected instance under a header."""
    lines = [
        f"{'here':<9}{'expected':<9}{'sat':>4}{'unsat':>6}{'seconds':>9}  outcome      instance"
    ]
    for item in comparisons:
        expected = item.expectation
        seconds = "-" if item.seconds is None else f"{item.seconds:.1f}"
        lines.append(
            f"{item.verdict or '-':<9}{expected.verdict:<9}{expected.tools_sat:>4}"
            f"{expected.tools_unsat:>6}{seconds:>9}  {item.outcome.value:<12} {name_of(item)}"
        )
    return "\n".join(lines)


def summary(result: Score) -> str:
    """Return the counts, and every conflict in a line of its own."""
    lines = [
        f"{result.solved} of {result.instances} solved; {result.missed} missed of {result.known} "
        f"with a known answer; {len(result.conflicts)} conflicts with the majority; "
        f"{result.errors} errors; {result.seconds:.1f} s in total"
    ]
    for item in result.conflicts:
        votes = item.expectation
        lines.append(
            f"conflict: {name_of(item)}: {item.verdict} here; {votes.tools_sat} tools sat, "
            f"{votes.tools_unsat} unsat"
        )
    lines += [f"not replayed: {text}" for text in result.unreplayed]
    lines += [f"WRONG: {text}" for text in result.wrong]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the two files named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Score a run against expected.csv.")
    parser.add_argument("records", type=Path, help="what --result_json wrote")
    parser.add_argument("expected", type=Path, help="the category's expected.csv")
    parser.add_argument(
        "--counterexamples",
        type=Path,
        metavar="FOLDER",
        help="other tools' counterexamples, to be replayed against every unsat",
    )
    parser.add_argument(
        "--require_sat",
        type=int,
        metavar="N",
        help="fail where at least N tools found a counterexample and this run did not",
    )
    options = parser.parse_args(arguments)
    try:
        comparisons = compare(read_records(options.records), read_expected(options.expected))
    except ResultError as error:
        print(error, file=sys.stderr)
        return 2
    result = score(comparisons, options.records.parent, options.counterexamples)
    print(table(comparisons))
    print(summary(result))
    missed: Sequence[Comparison] = ()
    if options.require_sat is not None:
        missed = missed_counterexamples(comparisons, options.require_sat)
        print(
            f"{len(missed)} counterexamples missed that {options.require_sat} or more tools found"
        )
    if all(item.record is None for item in comparisons):
        print(f"{options.records}: no record of an instance in {options.expected}", file=sys.stderr)
        return 2
    return int(bool(result.wrong) or bool(missed))


if __name__ == "__main__":
    sys.exit(main())
