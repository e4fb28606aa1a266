"""The five answers an instance can get, and the exit code that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Verdict(Enum):
    """The answer to one instance, in the words of VNN-COMP.

    The property file states what must *not* happen. `unsat` means that it cannot: the property
    holds. `sat` means that it can: the property is violated.
    """

    UNSAT = "unsat"
    """Proven for every input of the box."""

    SAT = "sat"
    """A counterexample was found, replayed with onnxruntime and checked exactly."""

    UNKNOWN = "unknown"
    """Neither was shown with the methods and effort allowed."""

    TIMEOUT = "timeout"
    """Neither was shown before the instance's time was up."""

    ERROR = "error"
    """The instance could not be processed. Says nothing about the property."""


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return 0 if every instance got an answer or an honest unknown or timeout, else 1."""
    return int(any(verdict is Verdict.ERROR for verdict in verdicts))
