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


def support_summary() -> str:
    """A Markdown table with a row per section: its keys by what is done with them.

    A dagger marks keys that only some values of are implemented.
    """
    sections: dict[str, dict[Status, list[str]]] = {}
    for key in (*key_table(), *LEGACY_KEYS):
        support = support_of(key)
        section, _, rest = key.partition(".")
        partly = bool(support.implemented or support.refused or support.instead)
        status, mark = (Status.IMPLEMENTED, "†") if partly else (support.status, "")
        kinds = sections.setdefault(section, {status: [] for status in Status})
        kinds[status].append(f"`{rest or key}`{mark}")
    head = ("section", *(_WORDS[status] for status in Status))
    rows = [
        (f"`{section}`", *(", ".join(kinds[status]) for status in Status))
        for section, kinds in sections.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


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
