"""The error function, and GELU: a value times the normal distribution of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.smooth import Smooth
from auto_LiRPA_patches.sharding.weights import WeightSource

_STEEPEST_ERF = 2 / math.sqrt(math.pi)
_TURN = math.sqrt(2)
# Where x Phi(x) is least, from its slope's zero; and a number just below its least value.
_LOWEST_AT = -0.7517915246935645
_LOWEST = -0.16997124
# Beyond it the slope is 0 or 1 within float64.
_FURTHEST = 40.0
# Halves a bracket of at most 40 until it is a rounding wide.
_BISECTIONS = 54


@dataclass(frozen=True)
class Erf(Smooth):
    """``y = erf(x)``: convex left of zero, concave right of it."""

    def function(self, value: Tensor) -> Tensor:
        return torch.erf(value)

    def slope(self, value: Tensor) -> Tensor:
        return _STEEPEST_ERF * torch.exp(-value * value)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        """``w = +-sqrt(-log(slope / f'(0)))``; no number for a slope that erf never has."""
        point = torch.sqrt(-torch.log(slope / _STEEPEST_ERF))
        return point, -point

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.slope(lower), self.slope(upper)
        around_zero = (lower < 0) & (upper > 0)
        largest = torch.maximum(left, right)
        return torch.minimum(left, right), largest.masked_fill(around_zero, _STEEPEST_ERF)


@dataclass(frozen=True)
class Gelu(Smooth):
    """``y = factor * x * Phi(inner * x)``, Phi the standard normal distribution; both > 0.

    Its slope falls until -sqrt(2), rises until sqrt(2) and falls again: a slope is taken at most
    once between, and at most once beyond each turn (Hendrycks and Gimpel 2016, arXiv 1606.08415,
    for the function).
    """

    factor: float = 1.0
    inner: float = 1.0

    def function(self, value: Tensor) -> Tensor:
        # erfc(-x / sqrt 2) / 2 is Phi, and keeps its digits where that is small.
        return self.factor * 0.5 * value * torch.erfc(-value * (self.inner / _TURN))

    def slope(self, value: Tensor) -> Tensor:
        return self.factor * _slope(value * self.inner)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        wanted = slope / self.factor
        return (
            _where_slope(wanted, -_TURN, -_FURTHEST) / self.inner,
            _where_slope(wanted, -_TURN, _TURN) / self.inner,
            _where_slope(wanted, _FURTHEST, _TURN) / self.inner,
        )

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.stack([self.slope(lower), self.slope(upper)])
        smallest, largest = ends.amin(0), ends.amax(0)
        for turn in (-_TURN / self.inner, _TURN / self.inner):
            inside = (lower < turn) & (upper > turn)
            at_turn = self.slope(torch.full_like(lower, turn))
            smallest = torch.where(inside, torch.minimum(smallest, at_turn), smallest)
            largest = torch.where(inside, torch.maximum(largest, at_turn), largest)
        return smallest, largest

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        left, right = self.function(inputs[0].lower), self.function(inputs[0].upper)
        place, least = _LOWEST_AT / self.inner, self.factor / self.inner * _LOWEST
        around = (inputs[0].lower <= place) & (inputs[0].upper >= place)
        # At minus infinity x Phi is infinity times zero: its limit is 0.
        left = left.masked_fill(inputs[0].lower == -torch.inf, 0.0)
        right = right.masked_fill(inputs[0].upper == -torch.inf, 0.0)
        smallest = torch.minimum(left, right).masked_fill(around, least)
        return Interval(smallest, torch.maximum(left, right))


def _slope(value: Tensor) -> Tensor:
    density = torch.exp(-0.5 * value * value) / math.sqrt(2 * math.pi)
    return 0.5 * torch.erfc(-value / _TURN) + value * density


def _where_slope(wanted: Tensor, low_end: float, high_end: float) -> Tensor:
    """The point between two ends at which the slope is `wanted`, it being less at `low_end`.

    One of the ends where it is nowhere so; another point of the interval does no harm.
    """
    low, high = torch.full_like(wanted, low_end), torch.full_like(wanted, high_end)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = _slope(middle) < wanted
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
