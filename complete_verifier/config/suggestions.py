"""The key or flag that the writer of an unknown one probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(unknown: str, known: Iterable[str]) -> str | None:
    """The name in `known` closest to `unknown` in spelling, or None where none is close."""
    by_spelling = {_spelling(name): name for name in known}
    matches = difflib.get_close_matches(_spelling(unknown), by_spelling, n=1, cutoff=0.6)
    return by_spelling[matches[0]] if matches else None


def nearest_key(unknown: str, known: Iterable[str]) -> str | None:
    """The dotted key closest to `unknown`: in its own section first, then anywhere by last name."""
    candidates = list(known)
    section, _, name = unknown.rpartition(".")
    siblings = [key for key in candidates if key.rpartition(".")[0] == section]
    close = nearest(unknown, siblings) if _shares_spelling(name, siblings) else None
    if close is not None:
        return close
    elsewhere = [key for key in candidates if _spelling(key.rpartition(".")[2]) == _spelling(name)]
    return (
        nearest(unknown, elsewhere)
        or (elsewhere[0] if elsewhere else None)
        or nearest(unknown, candidates)
    )


def _shares_spelling(name: str, siblings: list[str]) -> bool:
    """Whether the last part of a sibling, not only the section in front, resembles `name`."""
    return nearest(name, (key.rpartition(".")[2] for key in siblings)) is not None


def _spelling(name: str) -> str:
    """A name without the differences that people overlook: dashes and capitals."""
    return name.replace("-", "_").lower()
