"""Turn exact bounds on inputs into float64 boxes: one for all, and narrowings of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from complete_verifier.specification.clause import Clause
from complete_verifier.specification.exact import round_down, round_up
from complete_verifier.specification.formula import InputBound
from complete_verifier.specification.region import Region

# (lower, lower_open, upper, upper_open) as `Region` means them.
Interval = tuple[float, bool, float, bool]
# The inputs whose interval differs from the base box, by ascending index: a key for the box.
Narrowing = tuple[tuple[int, Interval], ...]

# How far an input is tried that has no bound, at least; else ten times the largest bound there is.
_LEAST_WINDOW = Fraction(10)
_MOST_WINDOW = Fraction(10**300)


class BoxBuilder:
    """The base box, asserted for all, from which each conjunction's box is derived afresh."""

    def __init__(self, num_inputs: int, bounds: Iterable[InputBound]) -> None:
        self._lower: list[InputBound | None] = [None] * num_inputs
        self._upper: list[InputBound | None] = [None] * num_inputs
        for bound in bounds:
            side = self._upper if bound.is_upper else self._lower
            side[bound.input_index] = _tighter(side[bound.input_index], bound)
        self._unbounded = [
            (index, name)
            for index, pair in enumerate(zip(self._lower, self._upper, strict=True))
            for name, bound_or_none in zip(("lower", "upper"), pair, strict=True)
            if bound_or_none is None
        ]
        intervals = [
            (0.0, False, 0.0, False) if lower is None or upper is None else interval(lower, upper)
            for lower, upper in zip(self._lower, self._upper, strict=True)
        ]
        self._arrays = _columns(intervals)
        # Large disjunctions repeat a few patterns of open sides: each is stored once.
        self._flags: dict[tuple[tuple[int, ...], tuple[bool, ...], bool], np.ndarray] = {}

    def missing(self, bounds: Iterable[InputBound]) -> tuple[int, str] | None:
        """Return the first (input, "lower" or "upper") that neither base nor `bounds` bounds."""
        if not self._unbounded:
            return None
        given = {(bound.input_index, "upper" if bound.is_upper else "lower") for bound in bounds}
        return next((side for side in self._unbounded if side not in given), None)

    def window(self, bounds: Sequence[InputBound]) -> list[InputBound]:
        """Bounds for every side that neither base nor `bounds` bounds.

        They lie beyond every bound there is, so that no interval comes out empty.
        """
        given = {(bound.input_index, bound.is_upper) for bound in bounds}
        stated = [bound for bound in (*self._lower, *self._upper, *bounds) if bound is not None]
        largest = max((abs(Fraction(bound.value)) for bound in stated), default=Fraction(0))
        reach = max(_LEAST_WINDOW, min(10 * largest, _MOST_WINDOW), largest + 1)
        return [
            InputBound(index, side == "upper", reach if side == "upper" else -reach, strict=False)
            for index, side in self._unbounded
            if (index, side == "upper") not in given
        ]

    def narrow(self, bounds: Iterable[InputBound]) -> Narrowing:
        """Return what `bounds` changes of the base box; every input must be bounded by then."""
        lower: dict[int, InputBound] = {}
        upper: dict[int, InputBound] = {}
        for bound in bounds:
            side, base = (upper, self._upper) if bound.is_upper else (lower, self._lower)
            side[bound.input_index] = _tighter(
                side.get(bound.input_index, base[bound.input_index]), bound
            )
        narrowed = []
        for index in sorted(lower.keys() | upper.keys()):
            low = lower.get(index, self._lower[index])
            high = upper.get(index, self._upper[index])
            if low is None or high is None:
                raise ValueError(f"input {index} is not bounded on both sides")
            found = interval(low, high)
            if low is self._lower[index] and high is self._upper[index]:
                continue
            narrowed.append((index, found))
        return tuple(narrowed)

    def region(
        self, narrowing: Narrowing, clauses: Sequence[Clause], *, windowed: bool = False
    ) -> Region:
        """Return the region over the base box narrowed by `narrowing`."""
        lower, lower_open, upper, upper_open = self._arrays
        if narrowing:
            indices = tuple(index for index, _ in narrowing)
            lows, lows_open, highs, highs_open = zip(*(i for _, i in narrowing), strict=True)
            lower = _replaced(lower, indices, lows)
            upper = _replaced(upper, indices, highs)
            lower_open = self._replaced_flags(lower_open, indices, lows_open, is_upper=False)
            upper_open = self._replaced_flags(upper_open, indices, highs_open, is_upper=True)
        return Region.from_checked(
            lower=lower,
            upper=upper,
            clauses=tuple(clauses),
            lower_open=lower_open,
            upper_open=upper_open,
            windowed=windowed,
        )

    def _replaced_flags(
        self,
        base: np.ndarray,
        indices: tuple[int, ...],
        values: tuple[bool, ...],
        *,
        is_upper: bool,
    ) -> np.ndarray:
        key = (indices, values, is_upper)
        flags = self._flags.get(key)
        if flags is None:
            flags = self._flags[key] = _replaced(base, indices, values)
        return flags


def interval(lower: InputBound, upper: InputBound) -> Interval:
    """Return the float64 interval around the exact one, open where a corner is not attained.

    An interval that is empty stays visibly empty: where rounding outward would hide that, it is
    rounded inward, which leaves lower > upper.
    """
    low, low_exact = round_down(lower.value)
    high, high_exact = round_up(upper.value)
    low_open = lower.strict or not low_exact
    high_open = upper.strict or not high_exact
    looks_empty = low > high or (low == high and (low_open or high_open))
    if not looks_empty and low <= high:
        is_point = lower.value == upper.value
        if lower.value > upper.value or (is_point and (lower.strict or upper.strict)):
            low, high = math.nextafter(high, math.inf), math.nextafter(low, -math.inf)
            return low, False, high, False
    return low, low_open, high, high_open


def _tighter(current: InputBound | None, bound: InputBound) -> InputBound:
    """Return the bound that allows less; both are on the same side of the same input."""
    if current is None:
        return bound
    if bound.value == current.value:
        return bound if bound.strict and not current.strict else current
    is_smaller = bound.value < current.value
    return bound if is_smaller == bound.is_upper else current


def _columns(
    intervals: Sequence[Interval],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    lower, lower_open, upper, upper_open = zip(*intervals, strict=True)
    columns = (
        np.array(lower, dtype=np.float64),
        np.array(lower_open, dtype=bool),
        np.array(upper, dtype=np.float64),
        np.array(upper_open, dtype=bool),
    )
    for column in columns:
        column.flags.writeable = False
    return columns


def _replaced(base: np.ndarray, indices: tuple[int, ...], values: tuple[float, ...]) -> np.ndarray:
    array = base.copy()
    for index, value in zip(indices, values, strict=True):
        array[index] = value
    array.flags.writeable = False
    return array
