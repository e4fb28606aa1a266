"""The one exception of this package, and how it names a place in a text."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class SpecificationError(VerifierError):
    """A property, or the list of instances, cannot be read or cannot be stated exactly."""


def error_at(source: str, text: str, offset: int, message: str) -> SpecificationError:
    """Return (not raise) an error that points at `offset` in `text`.

    Line and column are counted from 1, as editors do, and only here: a parser that keeps mere
    offsets stays fast on files of many megabytes.
    """
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    return SpecificationError(f"{source}:{line}:{column}: {message}")
