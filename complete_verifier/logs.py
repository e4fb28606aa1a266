"""Logging of one rank: rank 0 to the terminal, the others to files or nowhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auto_LiRPA_patches.sharding.launch import Launch
from complete_verifier.config import ConfigError


def make_log_folder(folder: Path) -> None:
    """Make the folder of `--rank_logs`; rank 0 too, which is the one to say that it cannot be.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--rank_logs: the folder {folder} cannot be made: {error.strerror}. "
            "Name a folder that can be written to."
        ) from error


@contextmanager
def rank_logging(launch: Launch, folder: Path | None) -> Iterator[None]:
    """Send log records where they belong for the duration of the block.

    Args:
        launch: which rank this is.
        folder: `--rank_logs`, made by `make_log_folder`: each rank but 0 writes ``rank<N>.log``
            there; None drops them, except errors, which always reach stderr.
    """
    root = logging.getLogger()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if launch.rank != 0:
        handlers[0].setLevel(logging.ERROR)
        if folder is not None:
            path = folder / f"rank{launch.rank}.log"
            handlers.append(logging.FileHandler(path, mode="w", encoding="utf-8"))
    formatter = logging.Formatter("%(message)s" if launch.rank == 0 else "%(asctime)s %(message)s")
    level = root.level
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
