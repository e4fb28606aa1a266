"""Sine and cosine."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.smooth import Smooth
from auto_LiRPA_patches.sharding.weights import WeightSource

_PERIOD = 2 * math.pi
# Beyond it float64 no longer tells where in its period a number lies closely enough for a line.
_FURTHEST = 1e9


@dataclass(frozen=True)
class Wave(Smooth):
    """``y = sin(x + phase)``; subclasses give the phase and f, f' without adding it."""

    @property
    @abstractmethod
    def phase(self) -> float:
        """Radians."""

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        """``w = +-arccos(m) - phase + 2 pi k``: f(w) - m w is linear in k, so two k will do."""
        angle = torch.arccos(slope)
        points = []
        for start in (angle - self.phase, -angle - self.phase):
            points.append(start + _PERIOD * torch.ceil((lower - start) / _PERIOD))
            points.append(start + _PERIOD * torch.floor((upper - start) / _PERIOD))
        return tuple(points)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return _range(lower, upper, self.phase + math.pi / 2)

    def inside_domain(self, lower: Tensor, upper: Tensor) -> Tensor:
        return torch.maximum(lower.abs(), upper.abs()) <= _FURTHEST

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower, upper = inputs[0].lower, inputs[0].upper
        known = torch.isfinite(lower) & torch.isfinite(upper)
        zero = torch.zeros_like(lower)
        smallest, largest = _range(
            lower.where(known, zero).double(), upper.where(known, zero).double(), self.phase
        )
        return Interval(
            smallest.to(lower.dtype).masked_fill(~known, -1.0),
            largest.to(lower.dtype).masked_fill(~known, 1.0),
        )


@dataclass(frozen=True)
class Sin(Wave):
    """``y = sin(x)``."""

    @property
    def phase(self) -> float:
        return 0.0

    def function(self, value: Tensor) -> Tensor:
        return torch.sin(value)

    def slope(self, value: Tensor) -> Tensor:
        return torch.cos(value)


@dataclass(frozen=True)
class Cos(Wave):
    """``y = cos(x)``."""

    @property
    def phase(self) -> float:
        return math.pi / 2

    def function(self, value: Tensor) -> Tensor:
        return torch.cos(value)

    def slope(self, value: Tensor) -> Tensor:
        return -torch.sin(value)


def _range(lower: Tensor, upper: Tensor, phase: float) -> tuple[Tensor, Tensor]:
    """Least and greatest ``sin(x + phase)`` over ``lower <= x <= upper``, float64."""
    left, right = torch.sin(lower + phase), torch.sin(upper + phase)
    smallest, largest = torch.minimum(left, right), torch.maximum(left, right)
    # Rounding must not lose an extreme just inside an end: the interval is widened a little.
    margin = 1e-12 * (1 + torch.maximum(lower.abs(), upper.abs()))

    def reached(crest: float) -> Tensor:
        first = torch.ceil((lower - margin + phase - crest) / _PERIOD)
        return first * _PERIOD <= upper + margin + phase - crest

    return (
        smallest.masked_fill(reached(-math.pi / 2), -1.0),
        largest.masked_fill(reached(math.pi / 2), 1.0),
    )
