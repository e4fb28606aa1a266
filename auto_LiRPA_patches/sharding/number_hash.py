"""One number that stands for many, for ranks to compare in a message of fixed size."""

from __future__ import annotations

from collections.abc import Iterable

_FACTOR, _MODULUS = 1_000_003, (1 << 61) - 1


def hash_of(numbers: Iterable[int], start: int = 0) -> int:
    """A hash of `numbers` in order, going on from `start`; it fits a signed 64-bit integer."""
    for number in numbers:
        start = (start * _FACTOR + number + 1) % _MODULUS
    return start
