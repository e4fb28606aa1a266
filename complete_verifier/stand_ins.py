"""Networks that a config names and nobody ships: made when they are first used.

A file in a folder called `generated_models`, named relative to the config file, is made by
`scripts/make_models.py` of this checkout unless it is there. Nothing else is ever run for a config.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from complete_verifier.config import ConfigError
from complete_verifier.results.progress import Printer
from complete_verifier.session import Session

FOLDER = "generated_models"
_SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "make_models.py"


def make_stand_ins(session: Session) -> None:
    """Make the files that the config names and that are made on demand; collective.

    One rank per host makes them, the others wait. Does nothing, and costs nothing, for a config
    that names none.

    Raises:
        ConfigError: on every rank, if one of them could not be made.
    """
    names = _names(session)
    if not names:
        return
    problem = ""
    if session.launch.local_rank == 0:
        try:
            for name in names:
                _make(session, name)
        except ConfigError as error:
            problem = str(error)
    problems = [text for text in session.ranks.world.all_gather_object(problem) if text]
    if problems:
        raise ConfigError(problems[0])


def _names(session: Session) -> list[str]:
    """The names of files that are made on demand, network first; the same on all ranks."""
    config = session.config
    if config.general.csv_name or not session.loaded.paths.config_folders:
        return []
    asked = (
        config.model.onnx_path and config.model.onnx_path_prefix + config.model.onnx_path,
        config.specification.vnnlib_path
        and config.specification.vnnlib_path_prefix + config.specification.vnnlib_path,
    )
    return [name for name in asked if name and _is_made_on_demand(Path(name))]


def _is_made_on_demand(path: Path) -> bool:
    return path.parent.name == FOLDER and not path.is_absolute()


def _make(session: Session, name: str) -> None:
    paths = session.loaded.paths
    if any(place.is_file() for place in paths.candidates(name)):
        return
    target = paths.config_folders[0] / name
    printer = Printer(session.speaks)
    printer.line(f"{target.name} is not there yet: making it (scripts/make_models.py)")
    if not _SCRIPT.is_file():
        raise ConfigError(
            f"{name}: expected {_SCRIPT} to make it, but this installation is no checkout. Clone "
            "the repository, or name a file of your own."
        )
    command = [sys.executable, str(_SCRIPT), target.stem, "--folder", str(target.parent.resolve())]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{name}: it could not be made: {last}")
    printer.line(result.stdout.strip())
