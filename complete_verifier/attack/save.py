"""Counterexample files in the text format of VNN-COMP.

One pair of brackets around one bracketed line per number, inputs first, both flat:

    ((X_0 0.25)
    (X_1 0.029999999329447746)
    (Y_0 -1.5))

Numbers are written as the shortest decimal that reads back as the same float64. The decimal thus
lies at most half a float64 spacing from the float32 number, and "0.03" is never written for the
float32 number just above it, which an exact reader would find outside a box that ends there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.errors import ResultError

_ENTRY = re.compile(r"\(\s*([XY])_(\d+)\s+([^\s()]+)\s*\)")


@dataclass(frozen=True, eq=False)
class SavedCounterexample:
    """The numbers of a counterexample file."""

    inputs: np.ndarray  # [I] float32
    outputs: np.ndarray  # [O] float32


def counterexample_path(cex_path: Path | str, instance: int, *, batch: bool) -> Path:
    """Return the file of one instance: `cex_path` itself, or with its number in a batch.

    `cex.txt` becomes `cex_7.txt` for instance 7 of a batch, so that no instance overwrites another,
    also when a batch is worked through by several runs.
    """
    path = Path(cex_path)
    if not batch:
        return path
    return path.with_name(f"{path.stem}_{instance}{path.suffix}")


def format_counterexample(counterexample: Counterexample) -> str:
    """Return the text of the file, ending in a newline."""
    lines = [f"(X_{i} {float(value)!r})" for i, value in enumerate(counterexample.inputs)]
    lines += [f"(Y_{i} {float(value)!r})" for i, value in enumerate(counterexample.outputs)]
    return "(" + "\n".join(lines) + ")\n"


def write_counterexample(path: Path | str, counterexample: Counterexample) -> None:
    """Write the file; it appears complete or not at all.

    Raises:
        ResultError: the file cannot be written.
    """
    write_text_atomically(Path(path), format_counterexample(counterexample))


def read_counterexample(path: Path | str) -> SavedCounterexample:
    """Read a counterexample file, also one whose first line is a verdict (`sat`).

    Raises:
        ResultError: the file cannot be read, or its numbers are missing, doubled or malformed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{path}: cannot read the counterexample: {error.strerror}.") from error
    values: dict[str, dict[int, float]] = {"X": {}, "Y": {}}
    for letter, index, number in _ENTRY.findall(text):
        try:
            value = float(number)
        except ValueError:
            raise ResultError(
                f"{path}: expected a number for {letter}_{index}, got {number!r}."
            ) from None
        if int(index) in values[letter]:
            raise ResultError(f"{path}: {letter}_{index} is given twice.")
        values[letter][int(index)] = value
    return SavedCounterexample(*(_dense(values[letter], letter, path) for letter in "XY"))


def _dense(values: dict[int, float], letter: str, path: Path | str) -> np.ndarray:
    missing = next((i for i in range(len(values)) if i not in values), None)
    if missing is not None or not values:
        raise ResultError(f"{path}: expected an entry ({letter}_{missing or 0} value), got none.")
    return np.array([values[i] for i in range(len(values))], dtype=np.float64).astype(np.float32)
