"""Applies the support table to the keys that were given: what is ignored, what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from complete_verifier.config.assignment import Assignment
from complete_verifier.config.callables import NamedCallable
from complete_verifier.config.errors import ConfigError
from complete_verifier.config.keys import key_table, same_value
from complete_verifier.config.render import render_value
from complete_verifier.config.support import (
    LEGACY_KEYS,
    NO_CALLABLES,
    VNNLIB_RULES,
    Status,
    Support,
    support_of,
)


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """A key that was given, has no effect in this release, and why that is harmless."""

    key: str
    value: Any
    origin: str
    effect: str


@dataclass(frozen=True, slots=True)
class Supported:
    """Values that the rest of the program can honour, and the keys it runs without."""

    values: Mapping[str, Any]
    ignored: tuple[IgnoredKey, ...]


def apply_support(assignments: Mapping[str, Assignment]) -> Supported:
    """Judge every given key; its default value is always welcome.

    An ignored value that other code could trip over is replaced with the one used instead.
    Raises: ConfigError naming the first key that changes the question.
    """
    has_vnnlib = any(
        key in assignments and assignments[key].value is not None
        for key in ("general.csv_name", "specification.vnnlib_path")
    )
    values: dict[str, Any] = {}
    ignored: list[IgnoredKey] = []
    for key, given in assignments.items():
        support = support_of(key)
        values[key] = support.instead.get(given.value, given.value)
        if _is_honoured(given, support, has_vnnlib):
            continue
        reason = _refusal(given, support, has_vnnlib)
        if reason is not None:
            raise ConfigError(
                f"{key}: {render_value(given.value)} is not supported ({given.origin}): {reason}."
            )
        effect = VNNLIB_RULES if support.vnnlib_replaces else support.effect
        ignored.append(IgnoredKey(key, given.value, given.origin, effect))
    return Supported({key: values[key] for key in values if key not in LEGACY_KEYS}, tuple(ignored))


def ignored_lines(ignored: Iterable[IgnoredKey]) -> tuple[str, ...]:
    """One warning per effect, naming the keys it speaks of."""
    keys_by_effect: dict[str, list[str]] = {}
    for item in ignored:
        keys_by_effect.setdefault(item.effect, []).append(f"{item.key} ({item.origin})")
    return tuple(f"ignored {', '.join(keys)}: {effect}." for effect, keys in keys_by_effect.items())


def _refusal(given: Assignment, support: Support, has_vnnlib: bool) -> str | None:
    """Why the run cannot go on with this value, or None where it can."""
    if isinstance(given.value, NamedCallable) or given.value in support.refused:
        return NO_CALLABLES
    is_refused = support.status is Status.REFUSED and not (support.vnnlib_replaces and has_vnnlib)
    return support.effect if is_refused else None


def _is_honoured(given: Assignment, support: Support, has_vnnlib: bool) -> bool:
    listed = any(same_value(given.value, value) for value in support.implemented)
    if support.status is Status.IMPLEMENTED or listed:
        is_replaced = support.vnnlib_replaces and has_vnnlib
        if not is_replaced:
            return True
    return given.key in key_table() and same_value(given.value, key_table()[given.key].default)
