"""Exact linear terms over inputs and outputs, and the atoms their comparisons make."""

from __future__ import annotations

import math
from fractions import Fraction

from complete_verifier.specification.exact import Exact, Rational, divide, to_rational
from complete_verifier.specification.formula import (
    FALSE,
    TRUE,
    And,
    Formula,
    InputBound,
    OutputRow,
)

# A variable is one int: input i is i, output j is -1 - j (see `output_code`).
COMPARISONS = ("<=", ">=", "<", ">", "=")
_LIMIT = 10**308


def output_code(index: int) -> int:
    """Return the code of output `index`; applied to a code, it returns the index."""
    return -1 - index


class Linear:
    """``sum(coefficients[v] * v) + constant`` in exact rationals; immutable by convention."""

    __slots__ = ("coefficients", "constant")

    def __init__(self, coefficients: dict[int, Rational], constant: Exact = 0) -> None:
        self.coefficients = {code: c for code, c in coefficients.items() if c}
        self.constant = to_rational(constant)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return self + factor * other."""
        coefficients = dict(self.coefficients)
        for code, coefficient in other.coefficients.items():
            coefficients[code] = coefficients.get(code, 0) + factor * coefficient
        return Linear(coefficients, self.constant + factor * other.constant)

    def times(self, factor: Rational) -> Linear:
        """Return factor * self."""
        return Linear(
            {code: factor * c for code, c in self.coefficients.items()}, factor * self.constant
        )


def compare(operator: str, left: Linear, right: Linear, names: dict[int, str]) -> Formula:
    """Return the formula ``left operator right``.

    Raises:
        ValueError: the comparison cannot be held exactly; the text says why, without a place.
    """
    if operator == "=":
        return And((compare("<=", left, right, names), compare(">=", left, right, names)))
    strict = operator in ("<", ">")
    difference = left.plus(right, -1) if operator in ("<", "<=") else right.plus(left, -1)
    bound = -difference.constant
    codes = sorted(difference.coefficients, reverse=True)
    if not codes:
        holds = bound > 0 or (bound == 0 and not strict)
        return TRUE if holds else FALSE
    if codes[0] < 0:
        return _output_row(difference.coefficients, bound, strict)
    _refuse_relations(codes, names)
    coefficient = difference.coefficients[codes[0]]
    value = _in_range(divide(bound, coefficient))
    return InputBound(codes[0], is_upper=coefficient > 0, value=value, strict=strict)


def _refuse_relations(codes: list[int], names: dict[int, str]) -> None:
    if len(codes) == 1:
        return
    highest, lowest = names[codes[0]], names[codes[-1]]
    if codes[-1] < 0:
        raise ValueError(
            f"this constraint relates input {highest} to output {lowest}; only constraints on one "
            "input, or on outputs alone, can be verified"
        )
    raise ValueError(
        f"this constraint relates inputs {lowest} and {highest}; the input set must be a box, so "
        "bound each input by constants"
    )


def _output_row(coefficients: dict[int, Rational], bound: Rational, strict: bool) -> OutputRow:
    """Return the row, scaled where that is what makes its coefficients exact in float64."""
    ordered: list[tuple[int, Rational]] = sorted(
        (output_code(code), c) for code, c in coefficients.items()
    )
    if len(ordered) == 1:
        index, coefficient = ordered[0]
        sign, size = (1.0, coefficient) if coefficient > 0 else (-1.0, -coefficient)
        value = bound if size == 1 else divide(bound, size)
        return OutputRow(((index, sign),), _in_range(value), strict)
    if not all(_is_float(c) for _, c in ordered):
        scale = _integer_scale([c for _, c in ordered])
        ordered = [(index, c * scale) for index, c in ordered]
        bound = bound * scale
        if not all(_is_float(c) for _, c in ordered):
            raise ValueError(
                "these coefficients have more digits than float64 can hold together; write them "
                "with at most 15 significant digits"
            )
    return OutputRow(tuple((index, float(c)) for index, c in ordered), _in_range(bound), strict)


def _integer_scale(coefficients: list[Rational]) -> Fraction:
    """Return a factor near 1 that makes all coefficients coprime integers over a power of two.

    Near 1 (within a factor of 2), so that margins keep the size the property gave them.
    """
    denominator = math.lcm(*(c.denominator for c in coefficients))
    divisor = math.gcd(*(int(c * denominator) for c in coefficients))
    factor = Fraction(denominator, divisor)
    exponent = factor.numerator.bit_length() - factor.denominator.bit_length()
    return factor / Fraction(2) ** exponent


def _is_float(value: Rational) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def is_in_range(value: Rational) -> bool:
    """Return whether `value` has float64 neighbours on both sides, with room for rounding."""
    return -_LIMIT < value < _LIMIT


def _in_range(value: Rational) -> Rational:
    if not is_in_range(value):
        raise ValueError("the bound this constraint implies is beyond 1e308")
    return value
