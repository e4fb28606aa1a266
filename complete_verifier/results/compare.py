"""Hold a run's records against `expected.csv`: what the tools of a competition answered.

A contradiction (one side `sat`, the other `unsat`) means that somebody is wrong. `expected.csv`
holds the majority; where few tools answered, or the counts are close, a replayed counterexample
weighs more than the vote. That judgement is left to the reader; the counts are shown.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from complete_verifier.results.errors import ResultError

_COLUMNS = ("onnx", "vnnlib", "verdict", "tools_sat", "tools_unsat")
_DECIDED = ("sat", "unsat")


@dataclass(frozen=True)
class Expectation:
    """One line of `expected.csv`: the majority verdict and how many tools said each."""

    onnx: str
    vnnlib: str
    verdict: str
    tools_sat: int
    tools_unsat: int


class Outcome(Enum):
    """How a record relates to the expectation."""

    AGREES = "agrees"
    CONTRADICTS = "CONTRADICTS"
    NEW = "new answer"
    """Decided here, by no majority there."""

    OPEN = "open"
    """Undecided here; decided there or not."""

    FAILED = "error"
    MISSING = "no record"


@dataclass(frozen=True)
class Comparison:
    """One expected instance beside its record."""

    expectation: Expectation
    verdict: str | None
    """The record's verdict; None without a record."""

    seconds: float | None
    outcome: Outcome
    record: Mapping[str, Any] | None = None

    @property
    def missed_sat(self) -> bool:
        """Whether tools found a counterexample and this run answered nothing."""
        return self.expectation.verdict == "sat" and self.verdict not in _DECIDED


def read_expected(path: Path | str) -> tuple[Expectation, ...]:
    """Read `expected.csv`.

    Raises:
        ResultError: the file cannot be read, lacks a column, or a count is no integer.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ResultError(
                    f"{path}:1: expected the columns {', '.join(_COLUMNS)}; "
                    f"{', '.join(missing)} not found."
                )
            return tuple(_expectation(row, f"{path}:{reader.line_num}") for row in reader)
    except OSError as error:
        raise ResultError(f"{path}: cannot read it: {error.strerror}.") from error


def compare(
    records: Sequence[Mapping[str, Any]], expectations: Sequence[Expectation]
) -> tuple[Comparison, ...]:
    """Return one comparison per expectation, in its order.

    Records are found by the end of their paths, with or without `.gz`, as a run may have been
    started from anywhere. Records without an expectation are left out.

    Raises:
        ResultError: two records belong to one expectation and their verdicts differ.
    """
    return tuple(_compare_one(expectation, records) for expectation in expectations)


def contradictions(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return those where one side says `sat` and the other `unsat`."""
    return tuple(item for item in comparisons if item.outcome is Outcome.CONTRADICTS)


def missed_counterexamples(
    comparisons: Sequence[Comparison], least_tools: int
) -> tuple[Comparison, ...]:
    """Return the `sat` instances that at least `least_tools` tools found and this run did not."""
    return tuple(
        item
        for item in comparisons
        if item.missed_sat and item.expectation.tools_sat >= least_tools
    )


def _expectation(row: Mapping[str, str], place: str) -> Expectation:
    try:
        return Expectation(
            onnx=row["onnx"],
            vnnlib=row["vnnlib"],
            verdict=row["verdict"],
            tools_sat=int(row["tools_sat"]),
            tools_unsat=int(row["tools_unsat"]),
        )
    except (TypeError, ValueError):
        raise ResultError(f"{place}: expected integers in tools_sat and tools_unsat.") from None


def _compare_one(expectation: Expectation, records: Sequence[Mapping[str, Any]]) -> Comparison:
    found = [
        record
        for record in records
        if names_same_file(str(record.get("onnx")), expectation.onnx)
        and names_same_file(str(record.get("vnnlib")), expectation.vnnlib)
    ]
    if not found:
        return Comparison(expectation, None, None, Outcome.MISSING)
    verdicts = {str(record.get("verdict")) for record in found}
    if len(verdicts) > 1:
        raise ResultError(
            f"{expectation.onnx} {expectation.vnnlib}: the records disagree: "
            f"{', '.join(sorted(verdicts))}."
        )
    verdict = verdicts.pop()
    seconds = (found[0].get("seconds") or {}).get("total")
    outcome = _outcome(verdict, expectation.verdict)
    return Comparison(expectation, verdict, seconds, outcome, found[0])


def _outcome(verdict: str, expected: str) -> Outcome:
    if verdict == "error":
        return Outcome.FAILED
    if verdict not in _DECIDED:
        return Outcome.OPEN
    if expected not in _DECIDED:
        return Outcome.NEW
    return Outcome.AGREES if verdict == expected else Outcome.CONTRADICTS


def names_same_file(path: str, expected: str) -> bool:
    """Whether `expected` is the tail of `path`, whole folders compared."""
    parts, tail = (Path(name.removesuffix(".gz")).parts for name in (path, expected))
    return len(tail) <= len(parts) and parts[len(parts) - len(tail) :] == tail
