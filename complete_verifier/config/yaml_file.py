"""Reads a YAML config: every key with its line, duplicates refused, includes followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from complete_verifier.config.assignment import Assignment, assign
from complete_verifier.config.errors import ConfigError
from complete_verifier.config.keys import key_table, section_names
from complete_verifier.config.raw import RawList, RawMapping, RawScalar, RawValue
from complete_verifier.config.suggestions import nearest_key
from complete_verifier.config.support import LEGACY_KEYS

_TAG_PREFIX = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "value", "seq", "map"})


@dataclass(frozen=True, slots=True)
class YamlConfig:
    """What a config file says. `folders` are those of the file and of the files it includes."""

    assignments: tuple[Assignment, ...]
    folders: tuple[Path, ...]


def read_yaml_config(path: Path) -> YamlConfig:
    """Read a config file.

    A file that is one bare string is an include: the string names another config file, relative
    to the file it stands in.
    Raises: ConfigError with file and line for a missing or malformed file, an unknown or repeated
    key, a value of the wrong type, or an include that leads back to itself.
    """
    chain: list[Path] = []
    while True:
        if path.resolve() in [seen.resolve() for seen in chain]:
            names = " -> ".join(str(seen) for seen in (*chain, path))
            raise ConfigError(
                f"{path}: config files include each other: {names}. Break the circle."
            )
        root = _compose(path, chain[-1] if chain else None)
        chain.append(path)
        if not isinstance(root, yaml.ScalarNode) or _tag(root) != "str":
            break
        path = path.parent / root.value
    folders = tuple(dict.fromkeys(file.parent for file in chain))
    return YamlConfig(tuple(_FileReader(path).read(root)), folders)


def read_mapping_config(values: Mapping[str, Any], origin: str) -> YamlConfig:
    """Read a config that is a mapping already: nested sections, dotted keys, or both.

    Values are judged as those of a file; `origin` stands for its name in messages.
    Raises: ConfigError as for a file; also for a value that YAML does not know.
    """
    try:
        text = yaml.safe_dump(_nested(values), sort_keys=False)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{origin}: expected numbers, texts, lists and mappings: {' '.join(str(error).split())}"
        ) from None
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return YamlConfig(tuple(_FileReader(Path(origin)).read(root)), ())


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested sections; tuples as lists."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = str(key).split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{key}: {section} is given as a value and as a section.")
        if isinstance(value, Mapping):
            below = place.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{key}: given twice. Keep one of the two.")
            _merge(below, _nested(value), str(key))
        elif name in place:
            raise ConfigError(f"{key}: given twice. Keep one of the two.")
        else:
            place[name] = list(value) if isinstance(value, tuple) else value
    return nested


def _merge(into: dict[str, Any], values: dict[str, Any], section: str) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value, f"{section}.{name}")
        elif name in into:
            raise ConfigError(f"{section}.{name}: given twice. Keep one of the two.")
        else:
            into[name] = value


def _compose(path: Path, included_by: Path | None) -> yaml.Node | None:
    """The node tree of a YAML file; None where the file holds nothing."""
    note = f" (included by {included_by})" if included_by is not None else ""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: config file not found{note}. Check the path given to --config; "
            f"it is relative to {Path.cwd()}."
        ) from None
    except UnicodeDecodeError as error:
        line = 1 + path.read_bytes()[: error.start].count(b"\n")
        raise ConfigError(f"{path}:{line}: not UTF-8 text. Save the config as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read{note}: {error.strerror}.") from None
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}.") from None
    except yaml.reader.ReaderError as error:
        line = 1 + text[: error.position].count("\n")
        raise ConfigError(
            f"{path}:{line}: not valid YAML: the character {chr(error.character)!r} is not allowed."
        ) from None


class _FileReader:
    """Walks the node tree of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, root: yaml.Node | None) -> Iterator[Assignment]:
        """The assignments of a file, in the order they are written."""
        if root is None or _tag(root) == "null":
            return
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"{self._path}: expected sections such as general and solver at the top, got "
                f"{_noun(root)} ({self._origin(root)}). Write each section's name followed by "
                f"a colon."
            )
        yield from self._read_section(root, "")

    def _read_section(self, node: yaml.MappingNode, section: str) -> Iterator[Assignment]:
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self._dotted_key(key_node, section)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise ConfigError(
                    f"{key}: given twice, at {self._path}:{lines[key]} and {self._path}:{line}. "
                    f"Keep one of the two."
                )
            lines[key] = line
            yield from self._read_entry(key, key_node, value_node)

    def _read_entry(
        self, key: str, key_node: yaml.Node, value_node: yaml.Node
    ) -> Iterator[Assignment]:
        origin = self._origin(key_node)
        if key in section_names():
            if isinstance(value_node, yaml.MappingNode):
                yield from self._read_section(value_node, key)
            elif _tag(value_node) != "null":
                example = next(name for name in key_table() if name.startswith(f"{key}."))
                raise ConfigError(
                    f"{key}: expected a section, got {_noun(value_node)} ({origin}). "
                    f"Indent its keys below it, for example {example.removeprefix(key + '.')}."
                )
            return
        spec = key_table().get(key) or LEGACY_KEYS.get(key)
        if spec is None:
            raise ConfigError(f"{key}: unknown key ({origin}). {_key_hint(key)}")
        yield assign(spec, self._raw(value_node, key), origin)

    def _dotted_key(self, node: yaml.Node, section: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(
                f"{section or self._path}: expected the name of a key, got {_noun(node)} "
                f"({self._origin(node)}). Write one word followed by a colon."
            )
        return f"{section}.{node.value}" if section else node.value

    def _raw(self, node: yaml.Node, key: str, inside: tuple[yaml.Node, ...] = ()) -> RawValue:
        """The value at a node; `inside` are the nodes around it."""
        if any(node is outer for outer in inside):
            raise ConfigError(
                f"{key}: a value contains itself ({self._origin(node)}). Remove the alias."
            )
        if _tag(node) not in _PLAIN_TAGS:
            raise ConfigError(
                f"{key}: the tag {node.tag} is not allowed ({self._origin(node)}). "
                f"Write the value without a tag."
            )
        if isinstance(node, yaml.ScalarNode):
            text = node.value.strip("\n")  # a block ends in a line break that nobody means
            return RawScalar(text, _tag(node), quoted=node.style is not None)
        around = (*inside, node)
        if isinstance(node, yaml.SequenceNode):
            return RawList(tuple(self._raw(item, key, around) for item in node.value))
        items = [(str(name.value), self._raw(item, key, around)) for name, item in node.value]
        return RawMapping(tuple(items))

    def _origin(self, node: yaml.Node) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"


def _tag(node: yaml.Node) -> str:
    """YAML's own name of a node's type: str, int, float, bool, null, seq, map, ..."""
    return node.tag.removeprefix(_TAG_PREFIX)


def _noun(node: yaml.Node) -> str:
    """A node in words, for errors."""
    if isinstance(node, yaml.ScalarNode):
        return node.value if _tag(node) != "str" else f'the text "{node.value}"'
    return "a list" if isinstance(node, yaml.SequenceNode) else "a section"


def _key_hint(key: str) -> str:
    sections = [name for name in section_names() if not key.startswith(f"{name}.")]
    close = nearest_key(key, [*key_table(), *sections])
    if close is None:
        return "--help lists every key."
    return f"The nearest key is {close}."
