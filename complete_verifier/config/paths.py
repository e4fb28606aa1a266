"""Where the files named in a config, a batch or on the command line are looked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from complete_verifier.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class InputPaths:
    """Finds input files: in the working directory, beside the config file, under the root path.

    `config_folders`: the folders of the config file and of the files it includes.
    `root`: `general.root_path`, already found; None where it is not set.
    """

    config_folders: tuple[Path, ...] = ()
    root: Path | None = None

    @classmethod
    def create(cls, config_folders: tuple[Path, ...], root_path: str) -> InputPaths:
        """The look-up for a config; `root_path` itself is not required to exist yet.

        A relative root is taken from the working directory, else from beside the config file.
        """
        if not root_path:
            return cls(config_folders)
        named = Path(root_path).expanduser()
        places = [named, *(folder / named for folder in config_folders)]
        return cls(config_folders, next((place for place in places if place.is_dir()), named))

    def candidates(self, name: str) -> tuple[Path, ...]:
        """The places where a file called `name` may lie, in the order they are tried."""
        path = Path(name).expanduser()
        if path.is_absolute():
            places = [path]
        else:
            roots = () if self.root is None else (self.root,)
            places = [path, *(folder / path for folder in (*self.config_folders, *roots))]
        with_gz = [variant for place in places for variant in _with_gz(place)]
        return tuple(dict.fromkeys(with_gz))

    def find(self, name: str, key: str) -> Path:
        """The file called `name`, or its `.gz` sibling.

        `key` is the dotted key or the batch file that names it, for the error.
        Raises: ConfigError listing every place that was tried.
        """
        places = self.candidates(name)
        for place in places:
            if place.is_file():
                return place
        looked = ", ".join(str(place.absolute()) for place in places if place.suffix != ".gz")
        raise ConfigError(
            f"{key}: file {name!r} not found, nor {name + '.gz'!r}. Looked for {looked}. "
            f"Correct the name, or set general.root_path to the folder it is relative to."
        )


def _with_gz(path: Path) -> tuple[Path, ...]:
    if path.suffix == ".gz" or not path.name:  # "." has no name a suffix could be put to
        return (path,)
    return (path, path.with_name(f"{path.name}.gz"))
