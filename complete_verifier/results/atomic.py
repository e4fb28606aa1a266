"""Files that are complete at every moment: a reader, or a crash, never meets half of one."""

from __future__ import annotations

import os
from pathlib import Path

from complete_verifier.results.errors import ResultError


def write_text_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step; missing folders are made.

    The text goes to a temporary file in the same folder, reaches the disk, and is renamed. Until
    then the old file stays as it was.

    Raises:
        ResultError: the file cannot be written; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:  # gone after a success; a failure or an interrupt must not leave it behind
        temporary.unlink(missing_ok=True)


def _cannot_write(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path}: cannot write the file: {error.strerror}.")
