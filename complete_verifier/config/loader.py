"""From a command line to a checked, immutable configuration."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from complete_verifier.config.assignment import Assignment
from complete_verifier.config.command_line import CommandLine, parse_command_line
from complete_verifier.config.errors import ConfigError
from complete_verifier.config.fingerprint import config_hash
from complete_verifier.config.help_text import help_text
from complete_verifier.config.keys import build_config, flatten, key_table, same_value
from complete_verifier.config.paths import InputPaths
from complete_verifier.config.policy import IgnoredKey, apply_support, ignored_lines
from complete_verifier.config.render import render_value
from complete_verifier.config.root import Config
from complete_verifier.config.yaml_file import (
    YamlConfig,
    read_mapping_config,
    read_yaml_config,
)

_BY_PROGRAM = "config"
_ARGUMENTS = "network and property are arguments of the call"
_QUESTION_KEYS = frozenset(
    {
        "general.csv_name",
        "model.name",
        "model.path",
        "model.onnx_path",
        "model.onnx_path_prefix",
    }
)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config, and how it came about.

    `origins`: where each given key was set, `x.yaml:14` or `--batch_size`.
    `ignored_keys`: given keys that have no effect in this release.
    `paths`: finds the files that the config names.
    `resume`: whether answers of an earlier run of the same batch are kept.
    `given_up`: file of instances to record as errors without trying them.
    `extensions`: Python files whose functions the config may name.
    """

    config: Config
    origins: Mapping[str, str]
    ignored_keys: tuple[IgnoredKey, ...]
    paths: InputPaths
    rank_logs: Path | None = None
    print_config: bool = False
    print_plan: bool = False
    resume: bool = False
    given_up: Path | None = None
    extensions: tuple[Path, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        """The dotted names of the ignored keys, for the record."""
        return tuple(item.key for item in self.ignored_keys)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line per reason why keys are ignored."""
        return ignored_lines(self.ignored_keys)

    @property
    def hash(self) -> str:
        """The fingerprint of the config as it was loaded, before `resolve`."""
        return config_hash(self.config)


def load_config(argv: Sequence[str]) -> LoadedConfig:
    """Read the command line and the YAML file it names; a flag beats YAML beats the default.

    Raises: ConfigError for anything wrong or not supported; SystemExit after `--help`.
    """
    command_line = parse_command_line(argv)
    if command_line.help:
        sys.stdout.write(help_text() + "\n")
        raise SystemExit(0)
    from_file = YamlConfig((), ())
    if command_line.config is not None:
        from_file = read_yaml_config(command_line.config)
    return _combine(from_file, command_line)


def load_given_config(given: Config | Mapping[str, Any] | Path | str | None) -> LoadedConfig:
    """A config given by a program: a built one, a mapping of keys, or the path of a YAML file.

    Args:
        given: None is every default. A mapping has nested sections or dotted keys
            (``{"bab.timeout": 60}``). Keys that name a network or a property have no effect.

    Raises: ConfigError for anything wrong or not supported.
    """
    if isinstance(given, Config):
        changed = changed_values(given)
        assignments = tuple(Assignment(key, changed[key], _BY_PROGRAM) for key in changed)
        read = YamlConfig(assignments, ())
    elif isinstance(given, (str, Path)):
        read = read_yaml_config(Path(given))
    else:
        read = read_mapping_config(given or {}, _BY_PROGRAM)
    kept = [item for item in read.assignments if not _asks(item.key)]
    loaded = _combine(replace(read, assignments=tuple(kept)), CommandLine())
    left_out = tuple(
        IgnoredKey(item.key, item.value, item.origin, _ARGUMENTS)
        for item in read.assignments
        if _asks(item.key)
    )
    return replace(loaded, ignored_keys=(*loaded.ignored_keys, *left_out))


def _asks(key: str) -> bool:
    """Whether a key says which network or property is meant, which a program says itself."""
    return key.startswith(("data.", "specification.")) or key in _QUESTION_KEYS


def changed_values(config: Config) -> dict[str, Any]:
    """The values of a config that are not the default, by dotted key."""
    table = key_table()
    return {
        key: value
        for key, value in flatten(config).items()
        if not same_value(value, table[key].default)
    }


def _combine(from_file: YamlConfig, command_line: CommandLine) -> LoadedConfig:
    given: dict[str, Assignment] = {}
    for assignment in (*from_file.assignments, *command_line.assignments):
        given[assignment.key] = assignment
    supported = apply_support(given)
    config = build_config(supported.values)
    origins = {key: assignment.origin for key, assignment in given.items()}
    _check_combinations(config, origins)
    if command_line.resume:
        _check_resume(config)
    return LoadedConfig(
        config=config,
        origins=origins,
        ignored_keys=supported.ignored,
        paths=InputPaths.create(from_file.folders, config.general.root_path),
        rank_logs=command_line.rank_logs,
        print_config=command_line.print_config,
        print_plan=command_line.print_plan,
        resume=command_line.resume,
        given_up=command_line.given_up,
        extensions=command_line.extensions,
    )


def _check_combinations(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse values that are right by themselves and wrong together."""
    start, end = config.data.start, config.data.end
    if start > end:
        places = _places(origins, ("data.start", "data.end"))
        raise ConfigError(
            f"data.start: expected at most data.end = {end}, got {start} ({places}). "
            f"Lower data.start or raise data.end."
        )


def _check_resume(config: Config) -> None:
    """Refuse to continue what leaves no trace of which instances were answered."""
    general = config.general
    if not general.csv_name:
        raise ConfigError("--resume: expected a batch, got one instance. Give --csv_name.")
    if not general.result_json and not general.results_file:
        raise ConfigError(
            "--resume: expected a file with earlier results, got none. Give --result_json or "
            "--results_file."
        )


def _places(origins: Mapping[str, str], keys: Iterable[str]) -> str:
    return " and ".join(origins[key] for key in keys if key in origins)


def describe_config(config: Config, origins: Mapping[str, str]) -> str:
    """The text of `--print_config`: every value that is not its default, with its origin."""
    lines = [
        (f"{key}: {render_value(value)}", origins.get(key, "resolved"))
        for key, value in changed_values(config).items()
    ]
    if not lines:
        return "every value is its default"
    width = max(len(text) for text, _ in lines)
    return "\n".join(f"{text:<{width}}  # {origin}" for text, origin in lines)
