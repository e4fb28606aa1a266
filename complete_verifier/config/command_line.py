"""Reads the command line: one flag per key, and a few that are no keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from complete_verifier.config.assignment import Assignment, assign
from complete_verifier.config.errors import ConfigError
from complete_verifier.config.keys import KeySpec, key_table
from complete_verifier.config.raw import FLAG_TAG, RawList, RawScalar, RawValue
from complete_verifier.config.suggestions import nearest

SWITCHES: Mapping[str, str] = {
    "--help": "Print this text and exit.",
    "--print_config": "Print every value that differs from its default, with its origin, and exit.",
    "--print_plan": "Print what each rank would hold and compute, and exit.",
    "--resume": "Keep what the result files of this batch answer already; do the rest, and errors.",
}
PATH_FLAGS: Mapping[str, str] = {
    "--config": "YAML file to start from.",
    "--rank_logs": "Folder for one log file per rank.",
    "--given_up": "List of instances to record as errors untried (made by scripts/run_batch.py).",
}
LIST_FLAGS: Mapping[str, str] = {
    "--extensions": 'Python files whose functions a config may name: Customized("file", "name").',
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line; flags that set a key are `assignments`, the last of a kind wins."""

    assignments: tuple[Assignment, ...] = ()
    config: Path | None = None
    rank_logs: Path | None = None
    help: bool = False
    print_config: bool = False
    print_plan: bool = False
    resume: bool = False
    given_up: Path | None = None
    extensions: tuple[Path, ...] = ()


@functools.cache
def flag_table() -> Mapping[str, KeySpec]:
    """The key that each flag sets."""
    return {spec.flag: spec for spec in key_table().values()}


def parse_command_line(argv: Sequence[str]) -> CommandLine:
    """Read `--flag value` and `--flag=value`; a boolean's value may be left out.

    Raises: ConfigError for an unknown flag, a flag without its value, or a value of a wrong type.
    """
    assignments: dict[str, Assignment] = {}
    paths: dict[str, Path] = {}
    switches: set[str] = set()
    extensions: list[Path] = []
    for flag, words in _split(argv):
        if flag in SWITCHES:
            _expect_count(flag, words, 0)
            switches.add(flag)
        elif flag in PATH_FLAGS:
            _expect_count(flag, words, 1)
            paths[flag] = Path(words[0])
        elif flag in LIST_FLAGS:
            if not words:
                _expect_count(flag, words, 1)
            extensions += map(Path, words)
        else:
            spec = flag_table()[flag]
            assignments[spec.key] = _assign_flag(spec, words)
    return CommandLine(
        assignments=tuple(assignments.values()),
        config=paths.get("--config"),
        rank_logs=paths.get("--rank_logs"),
        help="--help" in switches,
        print_config="--print_config" in switches,
        print_plan="--print_plan" in switches,
        resume="--resume" in switches,
        given_up=paths.get("--given_up"),
        extensions=tuple(extensions),
    )


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each flag with the words that follow it; every flag is known."""
    groups: list[tuple[str, list[str]]] = []
    for word in argv:
        if word == "-h" or word.startswith("--"):
            flag, has_value, value = word.partition("=")
            flag = "--help" if flag == "-h" else flag
            _check_known(flag)
            groups.append((flag, [value] if has_value else []))
        elif not groups:
            raise ConfigError(
                f"command line: unexpected {word!r}. Every value follows a flag; "
                f"a config file is given as --config {word}."
            )
        else:
            groups[-1][1].append(word)
    return groups


def _check_known(flag: str) -> None:
    known = [*flag_table(), *SWITCHES, *PATH_FLAGS, *LIST_FLAGS]
    if flag in known:
        return
    close = nearest(flag, known)
    hint = f"The nearest flag is {close}." if close else "--help lists every flag."
    raise ConfigError(f"{flag}: unknown flag. {hint}")


def _expect_count(flag: str, words: Sequence[str], count: int) -> None:
    if len(words) < count:
        raise ConfigError(f"{flag}: expected a value after the flag, got none. Add the value.")
    if len(words) > count:
        raise ConfigError(
            f"command line: unexpected {words[count]!r} after {flag}, which takes "
            f"{'one value' if count else 'no value'}. Remove it or name its flag."
        )


def _assign_flag(spec: KeySpec, words: Sequence[str]) -> Assignment:
    kind = spec.kind
    if kind.boolean and not words:
        words = ["true"]
    if kind.item is None:
        _expect_count(spec.flag, words, 1)
    elif not words:
        _expect_count(spec.flag, words, 1)
    given = assign(spec, _raw_value(spec, words), f"{spec.flag} on the command line")
    if spec.info.negated:
        return Assignment(given.key, not given.value, spec.flag)
    return Assignment(given.key, given.value, spec.flag)


def _raw_value(spec: KeySpec, words: Sequence[str]) -> RawValue:
    """The words after a flag: one, several, or a list in brackets as YAML writes it."""
    if spec.kind.item is not None and len(words) == 1 and words[0].startswith("["):
        return RawList(tuple(RawScalar(word, FLAG_TAG) for word in _bracketed(spec, words[0])))
    raws = tuple(RawScalar(word, FLAG_TAG) for word in words)
    return raws[0] if len(raws) == 1 else RawList(raws)


def _bracketed(spec: KeySpec, text: str) -> list[str]:
    """The items of `[1, 2]`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode) or not all(
        isinstance(item, yaml.ScalarNode) for item in node.value
    ):
        raise ConfigError(
            f"{spec.key}: expected {spec.kind.describe()}, got the text {text!r} "
            f"({spec.flag} on the command line). Write it as [a, b] or as words with spaces."
        )
    return [item.value for item in node.value]
