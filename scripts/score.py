"""Hold a run's records against a competition's answers.

Usage: python scripts/score.py OUT.json EXPECTED.csv [--require_sat N]

Prints a table and the counts. Exit code 0 if nothing contradicts; 1 if a verdict contradicts the
expected one, if a counterexample that N tools found was missed, or if there is nothing to compare;
2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from complete_verifier.results.compare import (
    Comparison,
    Outcome,
    compare,
    contradictions,
    missed_counterexamples,
    read_expected,
)
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record_file import read_records


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a line per expected instance under a header."""
    lines = [
        f"{'here':<9}{'expected':<9}{'sat':>4}{'unsat':>6}{'seconds':>9}  outcome      instance"
    ]
    for item in comparisons:
        expected = item.expectation
        seconds = "-" if item.seconds is None else f"{item.seconds:.1f}"
        name = f"{Path(expected.onnx).name} {Path(expected.vnnlib).name}"
        lines.append(
            f"{item.verdict or '-':<9}{expected.verdict:<9}{expected.tools_sat:>4}"
            f"{expected.tools_unsat:>6}{seconds:>9}  {item.outcome.value:<12} {name}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the two files named on the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Score a run against expected.csv.")
    parser.add_argument("records", type=Path, help="what --result_json wrote")
    parser.add_argument("expected", type=Path, help="the category's expected.csv")
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
    print(table(comparisons))
    counts = {kind: sum(item.outcome is kind for item in comparisons) for kind in Outcome}
    print(", ".join(f"{count} {kind.value}" for kind, count in counts.items()))
    missed: Sequence[Comparison] = ()
    if options.require_sat is not None:
        missed = missed_counterexamples(comparisons, options.require_sat)
        print(
            f"{len(missed)} counterexamples missed that {options.require_sat} or more tools found"
        )
    nothing = counts[Outcome.MISSING] == len(comparisons)
    return int(bool(contradictions(comparisons)) or bool(missed) or nothing)


if __name__ == "__main__":
    sys.exit(main())
