"""Names of functions that a config may mention. They are parsed, never evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CUSTOMIZED = re.compile(
    r"""Customized\(\s*(?P<q1>['"])(?P<module>[\w./-]+)(?P=q1)\s*,"""
    r"""\s*(?P<q2>['"])(?P<name>\w+)(?P=q2)\s*(?:,\s*(?P<arguments>.+?)\s*)?\)""",
    re.DOTALL,
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class NamedCallable:
    """A function named in a config: `default_adv_saver` or `Customized("module", "function")`.

    `arguments` keeps the text after the function's name (`in_channel=3`) as it was written.
    """

    name: str
    module: str = ""
    arguments: str = ""

    def __str__(self) -> str:
        if not self.module:
            return self.name
        tail = f", {self.arguments}" if self.arguments else ""
        return f'Customized("{self.module}", "{self.name}"{tail})'


def parse_callable(text: str) -> NamedCallable | None:
    """The callable that `text` names, or None where it names none."""
    stripped = text.strip()
    if _IDENTIFIER.fullmatch(stripped):
        return NamedCallable(stripped)
    match = _CUSTOMIZED.fullmatch(stripped)
    if match is None:
        return None
    return NamedCallable(match["name"], match["module"], match["arguments"] or "")
