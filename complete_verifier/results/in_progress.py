"""What a run leaves behind when it is killed: which instance it was working on.

While a batch works on an instance, a small file beside its results names it, `out.json.current`
beside `out.json`. It is gone when the instance has ended. A file that outlives its process tells
`scripts/run_batch.py` which instance killed it; the next process is told to give that one up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.errors import ResultError


@dataclass(frozen=True)
class RunningInstance:
    """The instance a process is, or was, working on.

    Attributes:
        index: its number in the list of instances, from 0.
        onnx, vnnlib: its files.
        started: seconds since the epoch.
    """

    index: int
    onnx: str
    vnnlib: str
    started: float


@dataclass(frozen=True)
class GivenUp:
    """An instance that is to be recorded as `error` without another try.

    Attributes:
        index: its number in the list of instances, from 0.
        reason: what happened to it, in one sentence.
        seconds: what it took until then.
    """

    index: int
    reason: str
    seconds: float


class CurrentFile:
    """The file that names the instance in progress; does nothing without a path."""

    def __init__(self, path: Path | None) -> None:
        """Remove what a killed run may have left.

        Raises:
            ResultError: the file cannot be removed.
        """
        self._path = path
        self.end()

    def begin(self, index: int, onnx: str, vnnlib: str) -> None:
        """Name the instance that is starting.

        Raises:
            ResultError: the file cannot be written.
        """
        if self._path is not None:
            running = RunningInstance(index, onnx, vnnlib, time.time())
            write_text_atomically(self._path, json.dumps(asdict(running)) + "\n")

    def end(self) -> None:
        """Say that no instance is in progress.

        Raises:
            ResultError: the file cannot be removed.
        """
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise ResultError(f"{self._path}: cannot remove it: {error.strerror}.") from error


def current_path(result_json: str | None, results_file: str) -> Path | None:
    """The file that names the instance in progress, beside the first of a run's result files.

    None where there is neither, or only something like `/dev/null`, beside which files have no
    business.
    """
    for name in (result_json, results_file):
        if name and (Path(name).is_file() or not Path(name).exists()):
            return Path(f"{name}.current")
    return None


def read_running(path: Path) -> RunningInstance | None:
    """The instance that `path` names; None where no instance is in progress.

    Raises:
        ResultError: the file cannot be read or names no instance.
    """
    if not path.exists():
        return None
    try:
        return RunningInstance(**_read_json(path, dict))
    except TypeError as error:
        raise ResultError(f"{path}: expected an instance in progress: {error}.") from error


def write_given_up(path: Path, given_up: Iterable[GivenUp]) -> None:
    """Write the file of `--given_up`.

    Raises:
        ResultError: it cannot be written.
    """
    write_text_atomically(path, json.dumps([asdict(item) for item in given_up]) + "\n")


def read_given_up(path: Path | None) -> Mapping[int, GivenUp]:
    """The instances given up, by index; none without a file.

    Raises:
        ResultError: the file cannot be read, or is not what `write_given_up` writes.
    """
    if path is None:
        return {}
    try:
        items = [GivenUp(**item) for item in _read_json(path, list)]
    except TypeError as error:
        raise ResultError(f"{path}: expected index, reason and seconds each: {error}.") from error
    return {item.index: item for item in items}


def _read_json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: cannot read it: {error.strerror}.") from error
    except ValueError as error:
        raise ResultError(f"{path}: expected JSON: {error}.") from error
    if not isinstance(found, kind):
        raise ResultError(f"{path}: expected a JSON {kind.__name__}, got {type(found).__name__}.")
    return found
