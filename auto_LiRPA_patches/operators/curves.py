"""Functions that bend one way where they are defined: exp, log, sqrt, 1/x; and powers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.smooth import Smooth
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Exp(Smooth):
    """``y = exp(x)``, convex; an upper end that overflows gives an infinite bound."""

    @property
    def upper_is_free(self) -> bool:
        return False

    def function(self, value: Tensor) -> Tensor:
        return torch.exp(value)

    def slope(self, value: Tensor) -> Tensor:
        return torch.exp(value)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return (torch.log(slope),)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(lower), torch.exp(upper)


@dataclass(frozen=True)
class Log(Smooth):
    """``y = log(x)``, concave on x > 0; an interval that reaches zero has no finite lower line."""

    @property
    def lower_is_free(self) -> bool:
        return False

    def function(self, value: Tensor) -> Tensor:
        return torch.log(value)

    def slope(self, value: Tensor) -> Tensor:
        return torch.reciprocal(value)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return (torch.reciprocal(slope),)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return torch.reciprocal(upper), torch.reciprocal(lower)

    def inside_domain(self, lower: Tensor, upper: Tensor) -> Tensor:
        return lower > 0

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower, upper = inputs[0].lower, inputs[0].upper
        return _unbounded_unless(lower > 0, Interval(torch.log(lower), torch.log(upper)))


@dataclass(frozen=True)
class Sqrt(Smooth):
    """``y = sqrt(x)``, concave on x >= 0; a negative lower end gives infinite bounds."""

    @property
    def lower_is_free(self) -> bool:
        return False

    def function(self, value: Tensor) -> Tensor:
        return torch.sqrt(value)

    def slope(self, value: Tensor) -> Tensor:
        return 0.5 / torch.sqrt(value)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return (0.25 / slope**2,)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        # At zero the derivative is infinite; four times the chord's slope is steep enough.
        chord = 1 / (torch.sqrt(lower) + torch.sqrt(upper)).clamp(min=1e-150)
        return self.slope(upper.clamp(min=1e-300)), torch.minimum(self.slope(lower), 4 * chord)

    def inside_domain(self, lower: Tensor, upper: Tensor) -> Tensor:
        return lower >= 0

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower, upper = inputs[0].lower, inputs[0].upper
        return _unbounded_unless(lower >= 0, Interval(torch.sqrt(lower), torch.sqrt(upper)))


@dataclass(frozen=True)
class Reciprocal(Smooth):
    """``y = 1 / x``, convex on x > 0 and concave on x < 0; no bounds across zero."""

    def function(self, value: Tensor) -> Tensor:
        return torch.reciprocal(value)

    def slope(self, value: Tensor) -> Tensor:
        return -torch.reciprocal(value * value)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        point = torch.rsqrt(-slope)
        return (torch.where(lower > 0, point, -point),)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.slope(lower), self.slope(upper)
        return torch.minimum(left, right), torch.maximum(left, right)

    def inside_domain(self, lower: Tensor, upper: Tensor) -> Tensor:
        return (lower > 0) | (upper < 0)

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower, upper = inputs[0].lower, inputs[0].upper
        image = Interval(torch.reciprocal(upper), torch.reciprocal(lower))
        return _unbounded_unless((lower > 0) | (upper < 0), image)


@dataclass(frozen=True)
class Power(Smooth):
    """``y = x ** exponent`` for an integer exponent of at least 2.

    An even power is convex; an odd one is concave left of zero and convex right of it.
    """

    exponent: int

    @property
    def upper_is_free(self) -> bool:
        return self.exponent % 2 == 1

    def function(self, value: Tensor) -> Tensor:
        return value**self.exponent

    def slope(self, value: Tensor) -> Tensor:
        return self.exponent * value ** (self.exponent - 1)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        point = (slope.abs() / self.exponent) ** (1 / (self.exponent - 1))
        if self.exponent % 2 == 0:
            return (point * slope.sign(),)
        return (point, -point)

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.slope(lower), self.slope(upper)
        smallest, largest = torch.minimum(left, right), torch.maximum(left, right)
        if self.exponent % 2 == 1:
            # The derivative is even: over an interval around zero it is least at zero.
            smallest = torch.where((lower < 0) & (upper > 0), torch.zeros_like(left), smallest)
        return smallest, largest

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        left, right = self.function(inputs[0].lower), self.function(inputs[0].upper)
        if self.exponent % 2 == 1:
            return Interval(left, right)
        around_zero = (inputs[0].lower < 0) & (inputs[0].upper > 0)
        smallest = torch.minimum(left, right).masked_fill(around_zero, 0.0)
        return Interval(smallest, torch.maximum(left, right))


def _unbounded_unless(inside: Tensor, image: Interval) -> Interval:
    """`image` where `inside`, else the whole line: sound, and it proves nothing."""
    return Interval(
        image.lower.masked_fill(~inside, -torch.inf), image.upper.masked_fill(~inside, torch.inf)
    )
