"""What this release does with every key, as a table made from the declarations themselves."""

from __future__ import annotations

from collections.abc import Iterator

from complete_verifier.config.keys import key_table
from complete_verifier.config.render import render_value
from complete_verifier.config.support import LEGACY_KEYS, Status, Support, support_of

_HEAD = ("| key | in this release | note |", "|---|---|---|")
_WORDS = {
    Status.IMPLEMENTED: "implemented",
    Status.IGNORED: "only speed or tightness: warned about",
    Status.REFUSED: "refused",
}


def support_table() -> str:
    """A Markdown table with a row per key, in the order of `--help`, and the legacy keys."""
    keys = (*key_table(), *LEGACY_KEYS)
    return "\n".join((*_HEAD, *(_row(key, support_of(key)) for key in keys)))


def _row(key: str, support: Support) -> str:
    note = "; ".join(_notes(support)).replace("|", "\\|")
    return f"| `{key}` | {_WORDS[support.status]} | {note} |"


def _notes(support: Support) -> Iterator[str]:
    if support.effect:
        yield support.effect
    if support.implemented:
        yield f"implemented: {_listed(support.implemented)}"
    if support.refused:
        yield f"refused: {_listed(support.refused)}"
    for given, used in support.instead.items():
        yield f"{given} is taken for {used}"
    if support.vnnlib_replaces:
        yield "without effect where a VNN-LIB file states the property"


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(render_value(value) for value in values)
