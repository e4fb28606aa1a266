"""One key given a value in one place, and the sentence that says what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from complete_verifier.config.errors import ConfigError
from complete_verifier.config.keys import KeySpec
from complete_verifier.config.kinds import NO_VALUE
from complete_verifier.config.option import range_problem
from complete_verifier.config.raw import RawScalar, RawValue, describe
from complete_verifier.config.render import render_value
from complete_verifier.config.suggestions import nearest


@dataclass(frozen=True, slots=True)
class Assignment:
    """A typed value of a key, and where it was given: `x.yaml:14` or `--batch_size`."""

    key: str
    value: Any
    origin: str


def assign(spec: KeySpec, raw: RawValue, origin: str) -> Assignment:
    """Give `raw` the type of its key.

    Raises: ConfigError if it has another type, is no choice, or lies out of range.
    """
    value = spec.kind.convert(raw)
    expected = (
        spec.kind.describe(spec.info.bounds.describe())
        if value is NO_VALUE
        else range_problem(spec.info, value)
    )
    if expected is None:
        return Assignment(spec.key, value, origin)
    if spec.info.expectation is None:
        expected = spec.kind.describe(spec.info.bounds.describe())
    is_low = value is not NO_VALUE and spec.info.expectation is None
    advice = _advice(spec, raw, is_flag=origin.startswith("--"), is_low=is_low)
    raise ConfigError(f"{spec.key}: expected {expected}, got {describe(raw)} ({origin}). {advice}")


def _advice(spec: KeySpec, raw: RawValue, *, is_flag: bool, is_low: bool) -> str:
    """What to do about a wrong value; `is_low` says that it has the right type."""
    leave_out = f"leave {spec.flag} out" if is_flag else "remove the line"
    default = f"{leave_out} for the default {render_value(spec.default)}"
    bounds = spec.info.bounds
    if isinstance(raw, RawScalar) and spec.kind.choices:
        close = nearest(raw.text, spec.kind.choices)
        if close is not None:
            return f"Did you mean {close}? Or {default}."
    if isinstance(raw, RawScalar) and spec.kind.text and raw.tag != "null":
        return f"Put it in quotes, or {default}."
    if is_low and bounds.at_least is not None and bounds.at_most is None:
        return f"Set it to at least {bounds.at_least:g}, or {default}."
    return f"Correct it, or {default}."
