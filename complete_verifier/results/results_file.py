"""The file of `general.results_file`: the verdicts as text, for scripts and for VNN-COMP.

One instance (`--onnx_path`, `--vnnlib_path`): VNN-COMP's form. The first line is the verdict; for
`sat` the counterexample follows, in the form of `complete_verifier.attack.save`.

Several instances (`--csv_name`): CSV with a header and one line per finished instance,

    index,onnx,vnnlib,verdict,seconds

where `index` counts the lines of the instances file from 0. α,β-CROWN pickles its batch summary;
text is safe to open, whoever wrote it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record import Record, Seconds
from complete_verifier.results.verdict import Verdict

_HEADER = ("index", "onnx", "vnnlib", "verdict", "seconds")


class ResultsFile:
    """The text file of one run; complete after every instance."""

    def __init__(
        self, path: Path | str, *, batch: bool, kept: Mapping[int, Record] | None = None
    ) -> None:
        """Choose the form; of a batch the header is written at once, replacing an older file.

        Args:
            batch: whether the run takes its instances from a list.
            kept: records of an earlier run of the batch, by index; their rows come first.

        Raises:
            ResultError: the file cannot be written.
        """
        self.path = Path(path)
        self._batch = batch
        self._text = _csv_line(_HEADER) if batch else ""
        for index, record in (kept or {}).items():
            self._text += _row(index, record)
        write_text_atomically(self.path, self._text)

    def add(self, index: int, record: Record, counterexample_text: str = "") -> None:
        """Write one instance's result.

        Args:
            index: the instance's number in its list; not written for a single instance.
            counterexample_text: as `format_counterexample` gives it; used for a single `sat`.

        Raises:
            ResultError: the file cannot be written.
        """
        if self._batch:
            self._text += _row(index, record)
        else:
            self._text = f"{record.verdict.value}\n{counterexample_text}"
        write_text_atomically(self.path, self._text)


def read_rows(path: Path | str) -> tuple[tuple[int, Record], ...]:
    """The rows of a batch's file: index, and a record of what the row holds, nothing else.

    Raises:
        ResultError: the file cannot be read or is not what a batch writes.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            if tuple(next(reader, ())) != _HEADER:
                raise ResultError(f"{path}:1: expected the line {','.join(_HEADER)}.")
            return tuple(_read_row(row, f"{path}:{reader.line_num}") for row in reader)
    except OSError as error:
        raise ResultError(f"{path}: cannot read it: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ResultError(f"{path}: expected CSV as a batch writes it: {error}.") from error


def _read_row(row: list[str], place: str) -> tuple[int, Record]:
    try:
        index, onnx, vnnlib, verdict, seconds = row
        total = Seconds(total=float(seconds))
        return int(index), Record(onnx=onnx, vnnlib=vnnlib, verdict=Verdict(verdict), seconds=total)
    except ValueError as error:
        raise ResultError(f"{place}: expected {','.join(_HEADER)}: {error}.") from error


def _row(index: int, record: Record) -> str:
    seconds = f"{record.seconds.total:.3f}"
    return _csv_line((str(index), record.onnx, record.vnnlib, record.verdict.value, seconds))


def _csv_line(fields: tuple[str, ...]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()
