"""Exact rationals on their way to float64, each rounded to a stated side.

A decimal such as 0.1 is no float64. Which neighbour stands in for it decides whether a proof or a
counterexample is right, so nothing here rounds to nearest without saying what was lost.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

# Plain constants stay Decimal (fast to make and to compare); arithmetic turns them into int or
# Fraction, because Decimal arithmetic rounds to a context. Comparisons among them, and with a
# float, are exact in Python.
Rational = int | Fraction
Exact = Decimal | Rational


def round_down(value: Exact) -> tuple[float, bool]:
    """Return the largest float64 <= `value`, and whether it equals `value`."""
    nearest = float(value)
    recovered = type(value)(nearest)
    if recovered == value:
        return nearest, True
    return (nearest if recovered < value else math.nextafter(nearest, -math.inf)), False


def round_up(value: Exact) -> tuple[float, bool]:
    """Return the smallest float64 >= `value`, and whether it equals `value`."""
    nearest = float(value)
    recovered = type(value)(nearest)
    if recovered == value:
        return nearest, True
    return (nearest if recovered > value else math.nextafter(nearest, math.inf)), False


def to_rational(value: Exact) -> Rational:
    """Return `value` in a type whose +, - and * are exact; int where it can be, which is faster."""
    if isinstance(value, Decimal):
        integer = int(value)
        return integer if integer == value else Fraction(value)
    return value


def divide(dividend: Rational, divisor: Rational) -> Rational:
    """Return the exact quotient; int / int in Python would be a float."""
    return Fraction(dividend) / divisor


def negate(value: Exact) -> Exact:
    """Return -value exactly; unary minus on a Decimal would round it to 28 digits."""
    return value.copy_negate() if isinstance(value, Decimal) else -value
