"""The keys that the section dataclasses declare, as one flat table, and back again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from complete_verifier.config.kinds import Kind, kind_of
from complete_verifier.config.option import OptionInfo, Section, option_info
from complete_verifier.config.root import Config

SectionType = TypeVar("SectionType", bound=Section)


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One key: dotted name, type, default and declaration."""

    key: str
    kind: Kind
    default: Any
    info: OptionInfo

    @property
    def flag(self) -> str:
        """The command-line flag, with its dashes."""
        return self.info.flag

    @property
    def section(self) -> str:
        """The dotted name of the section that holds the key."""
        return self.key.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What stands directly in a section: nested sections by field name, and keys in order."""

    subsections: Mapping[str, type[Section]]
    keys: tuple[KeySpec, ...]


def _layout(section: type[Section]) -> _Layout:
    """Read a section's fields."""
    hints = get_type_hints(section)
    subsections: dict[str, type[Section]] = {}
    keys: list[KeySpec] = []
    for declared in dataclasses.fields(section):  # type: ignore[arg-type]
        info = option_info(declared)
        if info is None:
            subsections[declared.name] = hints[declared.name]
        else:
            key = f"{section.SECTION}.{declared.name}"
            keys.append(KeySpec(key, kind_of(hints[declared.name]), declared.default, info))
    return _Layout(subsections, tuple(keys))


@functools.cache
def _layouts() -> Mapping[type[Section], _Layout]:
    """The layout of every section, the root included; reading annotations is slow, so once."""
    layouts: dict[type[Section], _Layout] = {}
    waiting: list[type[Section]] = [Config]
    while waiting:
        section = waiting.pop()
        layouts[section] = _layout(section)
        waiting.extend(layouts[section].subsections.values())
    return layouts


@functools.cache
def key_table() -> Mapping[str, KeySpec]:
    """Every key by its dotted name, in the order of `--help`."""

    def collect(section: type[Section]) -> list[KeySpec]:
        layout = _layouts()[section]
        nested = [spec for sub in layout.subsections.values() for spec in collect(sub)]
        return [*layout.keys, *nested]

    return {spec.key: spec for spec in collect(Config)}


@functools.cache
def section_names() -> frozenset[str]:
    """The dotted names of all sections; the root is not one of them."""
    return frozenset(section.SECTION for section in _layouts() if section.SECTION)


def _build(section: type[SectionType], values: Mapping[str, Any]) -> SectionType:
    """A section from typed values by dotted key; keys that are absent keep their default."""
    layout = _layouts()[section]
    arguments: dict[str, Any] = {
        name: _build(sub, values) for name, sub in layout.subsections.items()
    }
    for spec in layout.keys:
        if spec.key in values:
            arguments[spec.key.rpartition(".")[2]] = values[spec.key]
    return section(**arguments)


def build_config(values: Mapping[str, Any]) -> Config:
    """A config from typed values by dotted key; keys that are absent keep their default."""
    return _build(Config, values)


def flatten(config: Config) -> dict[str, Any]:
    """Every value of a config by dotted key."""

    def collect(section: Section) -> dict[str, Any]:
        layout = _layouts()[type(section)]
        values = {spec.key: getattr(section, spec.key.rpartition(".")[2]) for spec in layout.keys}
        for name in layout.subsections:
            values.update(collect(getattr(section, name)))
        return values

    return collect(config)


def with_values(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of `config` in which the keys of `changes` have new values."""
    return build_config({**flatten(config), **changes}) if changes else config


def same_value(left: Any, right: Any) -> bool:
    """Equality that tells true from 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right
