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
from pathlib import Path

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.record import Record

_HEADER = ("index", "onnx", "vnnlib", "verdict", "seconds")


class ResultsFile:
    """The text file of one run; complete after every instance."""

    def __init__(self, path: Path | str, *, batch: bool) -> None:
        """Choose the form; of a batch the header is written at once, replacing an older file.

        Args:
            batch: whether the run takes its instances from a list.

        Raises:
            ResultError: the file cannot be written.
        """
        self.path = Path(path)
        self._batch = batch
        self._text = _csv_line(_HEADER) if batch else ""
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
            seconds = f"{record.seconds.total:.3f}"
            row = (str(index), record.onnx, record.vnnlib, record.verdict.value, seconds)
            self._text += _csv_line(row)
        else:
            self._text = f"{record.verdict.value}\n{counterexample_text}"
        write_text_atomically(self.path, self._text)


def _csv_line(fields: tuple[str, ...]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()
