"""The file of `general.result_json`: a JSON array, complete after every instance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record import Record


class RecordFile:
    """An array with one record per line, replaced as a whole each time a record is added.

    A reader sees valid JSON at any moment, a killed run leaves every finished instance, and a file
    of an earlier run never passes for this one's: all but the records kept goes at the start,
    which also shows before the first hour of work that the place can be written to. A thousand
    records of a few kilobytes are rewritten in milliseconds each.
    """

    def __init__(self, path: Path | str, kept: Iterable[Record] = ()) -> None:
        """Start the file with the records `kept` of an earlier run, by default none.

        Raises:
            ResultError: the file cannot be written.
        """
        self.path = Path(path)
        self._lines = [_line(record) for record in kept]
        self._write()

    def add(self, record: Record) -> None:
        """Append `record` and write the file.

        Raises:
            ResultError: the file cannot be written; the file on disk is as before, and the record
                is written with the next one.
        """
        self._lines.append(_line(record))
        self._write()

    def _write(self) -> None:
        body = ",\n".join(self._lines)
        write_text_atomically(self.path, f"[\n{body}\n]\n" if body else "[]\n")


def _line(record: Record) -> str:
    return json.dumps(record.to_json(), allow_nan=False, ensure_ascii=False)


def read_records(path: Path | str) -> list[dict[str, Any]]:
    """Return the records of a finished or running run as plain JSON objects.

    Raises:
        ResultError: the file cannot be read or is no JSON array of objects.
    """
    try:
        records = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: cannot read the records: {error.strerror}.") from error
    except ValueError as error:
        raise ResultError(f"{path}: expected JSON as --result_json writes it: {error}.") from error
    if not isinstance(records, list) or not all(isinstance(item, dict) for item in records):
        raise ResultError(f"{path}: expected a JSON array of records.")
    return records
