"""Files that are complete at every moment: a reader, or a crash, never meets half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from complete_verifier.results.errors import ResultError


def write_text_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step; missing folders are made.

    The text goes to a temporary file in the same folder, reaches the disk, and is renamed. Until
    then the old file stays as it was. A link stays a link: the file it names is replaced. What is
    no regular file (`/dev/null`) is written to, never replaced.

    Raises:
        ResultError: the file cannot be written; nothing is left behind.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_text(text, encoding="utf-8")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, text)
    except OSError as error:
        raise ResultError(f"{path}: cannot write the file: {error.strerror}.") from error


def _replace(target: Path, text: str) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:  # gone after a success; a failure or an interrupt must not leave it behind
        with contextlib.suppress(OSError):
            temporary.unlink()
