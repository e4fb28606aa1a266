"""Read `instances.csv`: the list of queries of a benchmark, one network and property per line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.source_file import existing_file, read_text

_COLUMNS = "onnx,vnnlib,timeout"


@dataclass(frozen=True)
class Instance:
    """One query.

    Args:
        onnx, vnnlib: files that exist; a ".gz" sibling where the listed name does not.
        timeout: seconds, > 0.
        index: position in the list, from 0; the header and blank lines do not count.
    """

    onnx: Path
    vnnlib: Path
    timeout: float
    index: int


def read_instances(
    path: Path | str,
    root: Path | str | None = None,
    *,
    start: int = 0,
    end: int | None = None,
    select: Sequence[int] | None = None,
) -> tuple[Instance, ...]:
    """Return the instances listed in the CSV file `path`.

    Args:
        path: lines ``onnx,vnnlib,timeout`` (seconds), with or without a header line.
        root: folder the listed paths are relative to; the folder of `path` by default.
        start, end: keep indices start <= index < end; an `end` past the last line is the last line.
        select: keep these indices instead, in this order; `start` and `end` then have no effect.

    Raises:
        SpecificationError: "file:line: ..." for a malformed line or a listed file that is absent
            (kept lines only); an index in `select`, or a `start`, that the list does not have.
    """
    csv_path = Path(path)
    folder = csv_path.parent if root is None else Path(root)
    rows = _rows(csv_path)
    kept = _kept(len(rows), start, end, select, csv_path)
    return tuple(_instance(rows[index], index, folder, csv_path) for index in kept)


@dataclass(frozen=True)
class _Row:
    line: int
    onnx: str
    vnnlib: str
    timeout: float


def _rows(path: Path) -> list[_Row]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    rows: list[_Row] = []
    is_first = True
    try:
        for cells in reader:
            fields = [cell.strip() for cell in cells]
            if not any(fields):
                continue
            if not (is_first and _is_header(fields)):
                rows.append(_row(fields, reader.line_num, path))
            is_first = False
    except csv.Error as error:
        raise SpecificationError(f"{path}:{reader.line_num}: not a CSV line: {error}") from None
    if not rows:
        raise SpecificationError(f"{path}: expected lines {_COLUMNS}, got none")
    return rows


def _is_header(fields: list[str]) -> bool:
    return [field.lower() for field in fields[:2]] == ["onnx", "vnnlib"]


def _row(fields: list[str], line: int, path: Path) -> _Row:
    if len(fields) != 3 or not all(fields):
        raise SpecificationError(f"{path}:{line}: expected {_COLUMNS}, got {','.join(fields)!r}")
    try:
        timeout = float(fields[2])
    except ValueError:
        timeout = math.nan
    if not (math.isfinite(timeout) and timeout > 0):
        raise SpecificationError(
            f"{path}:{line}: expected a timeout in seconds above 0, got {fields[2]!r}"
        )
    return _Row(line, fields[0], fields[1], timeout)


def _kept(
    count: int, start: int, end: int | None, select: Sequence[int] | None, path: Path
) -> Sequence[int]:
    if select is not None:
        absent = [index for index in select if not 0 <= index < count]
        if absent:
            raise SpecificationError(
                f"{path}: expected selected instances between 0 and {count - 1}, got {absent[0]}"
            )
        return select
    stop = count if end is None else min(end, count)
    if not 0 <= start < stop:
        raise SpecificationError(
            f"{path}: start {start} and end {end} keep none of its {count} instances"
        )
    return range(start, stop)


def _instance(row: _Row, index: int, folder: Path, path: Path) -> Instance:
    found = []
    for name in (row.onnx, row.vnnlib):
        file = existing_file(folder / name)
        if file is None:
            raise SpecificationError(
                f"{path}:{row.line}: {folder / name} is listed but neither it nor its .gz exists"
            )
        found.append(file)
    return Instance(onnx=found[0], vnnlib=found[1], timeout=row.timeout, index=index)
