"""Values as they are written, before a key gives them a type."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

FLAG_TAG = "flag"

_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.?inf(?:inity)?", re.IGNORECASE)
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
_NULL = frozenset({"", "~", "null", "none"})


@dataclass(frozen=True, slots=True)
class RawScalar:
    """One word. `tag` is YAML's guess of its type (`str` where quoted), or `flag`."""

    text: str
    tag: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class RawList:
    """A YAML list, or the several values of one flag."""

    items: tuple[RawValue, ...]


@dataclass(frozen=True, slots=True)
class RawMapping:
    """A YAML mapping where a value belongs."""

    items: tuple[tuple[str, RawValue], ...]


RawValue: TypeAlias = "RawScalar | RawList | RawMapping"


def is_null(raw: RawScalar) -> bool:
    """Whether the word means nothing: YAML's null, or `null` after a flag."""
    if raw.tag == FLAG_TAG:
        return raw.text.lower() in _NULL - {""}
    return raw.tag == "null"


def as_bool(raw: RawScalar) -> bool | None:
    """The truth value of the word, or None where it is none. A quoted word is never one."""
    word = raw.text.lower()
    if raw.quoted or word not in _TRUE | _FALSE:
        return None
    return word in _TRUE


def as_float(raw: RawScalar) -> float | None:
    """The number of the word, or None. `1e9` is one although YAML 1.1 reads it as text."""
    if raw.quoted:
        return None
    infinity = _INFINITY.fullmatch(raw.text)
    if infinity is not None:
        return -math.inf if infinity[1] == "-" else math.inf
    if _NUMBER.fullmatch(raw.text) is None:
        return None
    return float(raw.text.replace("_", ""))


def as_int(raw: RawScalar) -> int | None:
    """The whole number of the word, or None. `1e9` and `50.0` are whole."""
    if not raw.quoted and _INTEGER.fullmatch(raw.text) is not None:
        return int(raw.text.replace("_", ""))
    value = as_float(raw)
    if value is None or not math.isfinite(value) or not value.is_integer():
        return None
    return int(value)


def as_text(raw: RawScalar) -> str | None:
    """The word as text; None where YAML reads it as a number, a truth value or null."""
    return None if raw.tag in ("int", "float", "bool", "null") else raw.text


def to_plain(raw: RawValue) -> Any:
    """The value with YAML's own types, for keys that keep structured values."""
    if isinstance(raw, RawList):
        return [to_plain(item) for item in raw.items]
    if isinstance(raw, RawMapping):
        return {name: to_plain(item) for name, item in raw.items}
    if is_null(raw):
        return None
    for convert in (as_bool, as_int, as_float):
        value = convert(raw)
        if value is not None:
            return value
    return raw.text


def to_json(raw: RawValue) -> str:
    """The value as canonical JSON; text is kept as it is written."""
    if isinstance(raw, RawScalar):
        return raw.text
    return json.dumps(to_plain(raw), sort_keys=True)


def describe(raw: RawValue) -> str:
    """What the reader of an error sees after "got"."""
    if isinstance(raw, RawList):
        return f"the list [{', '.join(describe(item) for item in raw.items)}]"
    if isinstance(raw, RawMapping):
        return "a section"
    if is_null(raw):
        return "nothing"
    if raw.quoted or as_text(raw) is not None and as_float(raw) is None and as_bool(raw) is None:
        return f'the text "{_one_line(raw.text)}"'
    return raw.text


def _one_line(text: str) -> str:
    """Text short enough for a sentence, its line breaks shown as such."""
    shown = text.replace("\n", "\\n")
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
