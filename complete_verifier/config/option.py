"""How a key is declared: one dataclass field that carries its flag, range and help.

The dataclasses of the section files are the only schema. The YAML reader, the command line, the
help and the support table all read the fields through `keys.py`; there is no second list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NewType

from complete_verifier.config.errors import ConfigError

JsonText = NewType("JsonText", str)
"""A structured value (mapping or list) kept as canonical JSON, so that a config stays immutable."""

_METADATA_KEY = "option"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range a number must lie in; None where a side is open."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def admit(self, value: float) -> bool:
        """Whether `value` lies in the range."""
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def describe(self) -> str:
        """The range in words that follow a type: ` >= 1`, ` > 0 and <= 1`, or nothing."""
        sides = ((">=", self.at_least), (">", self.above), ("<=", self.at_most))
        parts = [f"{sign} {limit:g}" for sign, limit in sides if limit is not None]
        return f" {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What a field knows about its key beyond name, type and default.

    `negated`: giving the flag alone means false (`--no_incomplete`).
    `expectation`: returns what was expected when a value of the right type is still wrong.
    """

    flag: str
    help: str
    negated: bool
    bounds: Bounds
    expectation: Callable[[Any], str | None] | None


def option(
    default: Any,
    flag: str,
    help: str,
    *,
    negated: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    expectation: Callable[[Any], str | None] | None = None,
) -> Any:
    """Declare a key. `help` states its meaning and unit; it is what `--help` prints."""
    info = OptionInfo(flag, help, negated, Bounds(at_least, above, at_most), expectation)
    return field(default=default, metadata={_METADATA_KEY: info})


def option_info(declared: dataclasses.Field[Any]) -> OptionInfo | None:
    """The declaration behind a field, or None where the field is a nested section."""
    return declared.metadata.get(_METADATA_KEY)


def range_problem(info: OptionInfo, value: Any) -> str | None:
    """What `info` expects of `value` where it is out of range, else None. Types are not judged."""
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        is_number = isinstance(item, (int, float)) and not isinstance(item, bool)
        if is_number and not info.bounds.admit(item):
            return f"a value{info.bounds.describe()}"
    return info.expectation(value) if info.expectation is not None else None


class Section:
    """Base of every section: `SECTION` is its dotted name, and ranges hold however it is built."""

    __slots__ = ()
    SECTION: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for declared in dataclasses.fields(self):  # type: ignore[arg-type]
            info = option_info(declared)
            if info is None:
                continue
            value = getattr(self, declared.name)
            expected = range_problem(info, value)
            if expected is not None:
                raise ConfigError(
                    f"{self.SECTION}.{declared.name}: expected {expected}, got {value!r}."
                )
