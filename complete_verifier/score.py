"""Judge a run against a competition's answers: what it solved, and whether it was ever wrong.

A majority can err. A run is only *wrong* where a counterexample says so: its `unsat` stands against
one that replays, or its own `sat` does not replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auto_LiRPA_patches.errors import VerifierError
from complete_verifier.replay import replays
from complete_verifier.results.compare import Comparison, Outcome

_SOLVED = ("sat", "unsat")


@dataclass(frozen=True)
class Score:
    """One category's counts.

    Attributes:
        instances: expected instances.
        known: those with a majority verdict.
        solved: answered `sat` or `unsat` here.
        missed: with a majority verdict and no answer here.
        conflicts: answered otherwise than the majority.
        errors: ended in an error, or have no record.
        seconds: total over all records.
        wrong: sentences, one per answer that a counterexample refutes.
        unreplayed: `sat` answers whose counterexample could not be replayed, and why.
    """

    instances: int
    known: int
    solved: int
    missed: int
    conflicts: tuple[Comparison, ...]
    errors: int
    seconds: float
    wrong: tuple[str, ...]
    unreplayed: tuple[str, ...]


def score(
    comparisons: Sequence[Comparison], beside: Path, counterexamples: Path | None = None
) -> Score:
    """Count, and replay every counterexample at hand.

    Args:
        comparisons: of `compare`.
        beside: folder in which a record's relative paths are looked for after the working
            directory.
        counterexamples: folder of other tools' counterexamples, as VNN-COMP names them:
            ``{onnx stem}_{vnnlib stem}.counterexample`` at any depth.
    """
    replayed = _Replays(beside, counterexamples)
    for item in comparisons:
        replayed.look_at(item)
    known = [item for item in comparisons if item.expectation.verdict in _SOLVED]
    return Score(
        instances=len(comparisons),
        known=len(known),
        solved=sum(item.verdict in _SOLVED for item in comparisons),
        missed=sum(item.verdict not in _SOLVED for item in known),
        conflicts=tuple(item for item in comparisons if item.outcome is Outcome.CONTRADICTS),
        errors=sum(item.outcome in (Outcome.FAILED, Outcome.MISSING) for item in comparisons),
        seconds=sum(item.seconds or 0.0 for item in comparisons),
        wrong=tuple(replayed.wrong),
        unreplayed=tuple(replayed.failures),
    )


def name_of(item: Comparison) -> str:
    """Network and property without their folders."""
    return f"{Path(item.expectation.onnx).name} {Path(item.expectation.vnnlib).name}"


class _Replays:
    """Replays what refutes or supports single answers, and keeps what came of it."""

    def __init__(self, beside: Path, others: Path | None) -> None:
        self.beside = beside
        self.others = others
        self.wrong: list[str] = []
        self.failures: list[str] = []

    def look_at(self, item: Comparison) -> None:
        record = item.record
        if record is None:
            return
        if item.verdict == "sat":
            file = record.get("counterexample")
            if file is None:
                self.failures.append(f"{name_of(item)}: the record names no counterexample file")
            elif self._replay(item, record, _find(str(file), self.beside)) is False:
                self.wrong.append(f"{name_of(item)}: the counterexample in {file} does not replay")
        elif item.verdict == "unsat" and self.others is not None:
            for path in _files_of(item, self.others):
                if self._replay(item, record, path):
                    self.wrong.append(f"{name_of(item)}: unsat, and {path} replays")

    def _replay(self, item: Comparison, record: Mapping[str, Any], file: Path) -> bool | None:
        """Whether a counterexample replays; None where that cannot be told."""
        onnx, vnnlib = (_find(str(record[key]), self.beside) for key in ("onnx", "vnnlib"))
        try:
            return replays(onnx, vnnlib, file)
        except VerifierError as error:
            self.failures.append(f"{name_of(item)}: {error}")
            return None


def _find(name: str, beside: Path) -> Path:
    path = Path(name)
    return path if path.exists() or path.is_absolute() else beside / path


def _files_of(item: Comparison, folder: Path) -> list[Path]:
    names = (item.expectation.onnx, item.expectation.vnnlib)
    stem = "_".join(Path(name.removesuffix(".gz")).stem for name in names)
    return sorted(folder.rglob(f"{stem}.counterexample"))
