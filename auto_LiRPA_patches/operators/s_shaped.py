"""Sigmoid and Tanh: convex left of zero, concave right of it, symmetric about (0, f(0)).

Lower line over [l, u], with d* the right-most point whose tangent stays
below (u, f(u)):
  * l >= 0 (concave) or d* <= l: the chord;
  * otherwise the tangent at any d in [l, d*]; α says where: d = l + α (d* - l).
The upper line is the lower line of the mirrored function over [-u, -l].
Reference: Zhang et al. 2018 (arXiv 1811.00866), section 3.2 for the cases; Lyu et al. 2020
(arXiv 1912.00449) for optimised tangent points.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation, Relaxation, pick
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines
from auto_LiRPA_patches.operators.tangent_points import furthest_tangent

# Below this width the chord's slope would be rounding noise; a secant-free line is used instead.
_NARROW = 1e-3
# Units in the last place of f's height by which every line is moved outwards: f(x) near zero, and
# f(-inf) - f(x), are differences of numbers of that size, however small they are themselves.
_UNITS = 2


@dataclass(frozen=True)
class Side:
    """Lower line of f over one side's intervals, each tensor ``[B, F]``.

    Attributes:
        furthest: d*, the right-most sound tangent point.
        reach: d* - l, how far α moves the tangent point; 0 where the line is fixed.
        tangent: 1 where a tangent is the lower line, 0 where a fixed line is.
        fixed_slope, fixed_intercept: that line; 0 where the tangent is used.
        start: α of CROWN's own line.
    """

    furthest: Tensor
    reach: Tensor
    tangent: Tensor
    fixed_slope: Tensor
    fixed_intercept: Tensor
    start: Tensor


@dataclass(frozen=True)
class SShapedRelaxation(Relaxation):
    """Both sides; `mirrored` is the lower side of the function turned about (0, f(0))."""

    straight: Side
    mirrored: Side


@dataclass(frozen=True)
class SShaped(Activation):
    """``f(x) = height * sigmoid(steepness x) + f(-inf)``; subclasses give the numbers."""

    @property
    @abstractmethod
    def steepness(self) -> float:
        """Factor on the argument of the sigmoid, > 0."""

    @property
    @abstractmethod
    def height(self) -> float:
        """f(+inf) - f(-inf)."""

    @property
    @abstractmethod
    def symmetry(self) -> float:
        """The constant f(x) + f(-x)."""

    def margin(self, precision: torch.dtype) -> float:
        """What is taken off every lower line for rounding."""
        return _UNITS * torch.finfo(precision).eps * self.height

    def slope(self, value: Tensor) -> Tensor:
        """f', elementwise."""
        # f' = f (1 - f) in terms of f is rounding noise in the tails, where a tangent spans wide
        # intervals.
        scaled = self.steepness * value
        return self.height * self.steepness * torch.sigmoid(scaled) * torch.sigmoid(-scaled)

    def unstable(self, bounds: Interval) -> Tensor:
        return torch.ones(bounds.lower.shape[1], dtype=torch.bool, device=bounds.lower.device)

    def relax(self, bounds: Interval, features: Tensor | None) -> SShapedRelaxation:
        lower, upper = pick(bounds.lower, features), pick(bounds.upper, features)
        if features is not None and features.numel() != bounds.lower.shape[1]:
            raise ValueError(f"{self.name}: every element of an S-shaped function is relaxed")
        return SShapedRelaxation(None, self._side(lower, upper), self._side(-upper, -lower))

    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        own = self._own(relaxation)
        return torch.stack([own.straight.start, own.mirrored.start])

    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        own = self._own(relaxation)
        if alpha is None:
            alpha = self.initial_alpha(relaxation).unsqueeze(1)
        lower_slope, lower_intercept = self._line(own.straight, alpha[0])
        upper_slope, mirrored = self._line(own.mirrored, alpha[1])
        return Lines(
            None, None, lower_slope, lower_intercept, upper_slope, self.symmetry - mirrored
        )

    def carry_alpha(self, alpha: Tensor, before: Interval, after: Interval) -> Tensor:
        """The same tangent points where they are still sound, else the nearest that are."""
        carried = []
        sides = (
            (before.lower, before.upper, after.lower, after.upper),
            (-before.upper, -before.lower, -after.upper, -after.lower),
        )
        for own, (lower, upper, inner_lower, inner_upper) in zip(alpha, sides, strict=True):
            old, new = self._side(lower, upper), self._side(inner_lower, inner_upper)
            point = old.furthest - (1 - own) * old.reach
            share = 1 - (new.furthest - point) / new.reach
            both = old.tangent * new.tangent > 0
            carried.append(torch.where(both, share.clamp(0, 1), new.start))
        return torch.stack(carried)

    def _side(self, lower: Tensor, upper: Tensor) -> Side:
        with torch.no_grad():
            furthest = furthest_tangent(lower, upper, self.steepness)
            narrow = upper - lower < _NARROW
            chosen = (lower < 0) & (furthest > lower) & ~narrow
            tangent = chosen.to(lower.dtype)
            start = torch.where(upper <= 0, 0.5, 1.0).to(lower.dtype)
            reach = (furthest - lower) * tangent
        value_lower, value_upper = self.function(lower), self.function(upper)
        width = torch.where(narrow, torch.ones_like(lower), upper - lower)
        chord = (value_upper - value_lower) / width
        # Mean value theorem with the smallest derivative, at an end point: sound at any width.
        flattest = torch.minimum(self.slope(lower), self.slope(upper))
        fixed_slope = torch.where(narrow, flattest, chord)
        fixed_intercept = value_lower - fixed_slope * lower - self.margin(lower.dtype)
        fixed_slope = fixed_slope.masked_fill(chosen, 0.0)
        fixed_intercept = fixed_intercept.masked_fill(chosen, 0.0)
        return Side(furthest, reach, tangent, fixed_slope, fixed_intercept, start)

    def _line(self, side: Side, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and intercept ``[S, B, F]`` of the lower line for ``alpha [S, B, F]``."""
        slope, intercept = _TangentLine.apply(
            alpha, side.fixed_slope, side.fixed_intercept, side, self
        )
        return slope, intercept

    def _own(self, relaxation: Relaxation) -> SShapedRelaxation:
        if not isinstance(relaxation, SShapedRelaxation):
            raise TypeError(f"{self.name}: expected an S-shaped relaxation")
        return relaxation


class _TangentLine(torch.autograd.Function):
    """The line at the point α names: few passes, one sigmoid, and its gradient in closed form.

    Tangent points are never positive, so 1 - sigmoid keeps its relative precision there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        alpha: Tensor,
        fixed_slope: Tensor,
        fixed_intercept: Tensor,
        side: Side,
        curve: SShaped,
    ) -> tuple[Tensor, Tensor]:
        # Counted from d*, which rounding must not overstep: far from zero, l + (d* - l) does.
        point = side.furthest - (1 - alpha) * side.reach
        sigmoid = torch.sigmoid(curve.steepness * point)
        rise = curve.height * curve.steepness
        slope = (1 - sigmoid).mul_(sigmoid).mul_(rise)
        value = sigmoid * curve.height
        value.add_((curve.symmetry - curve.height) / 2).sub_(curve.margin(value.dtype))
        intercept = value.addcmul_(slope, point, value=-1)
        if ctx.needs_input_grad[0]:
            # f'' (d* - l), what the tangent's slope gains per unit of α.
            bend = (1 - 2 * sigmoid).mul_(slope).mul_(side.reach).mul_(curve.steepness)
            ctx.save_for_backward(bend, point)
        ctx.shape = fixed_slope.shape
        slope = torch.addcmul(fixed_slope, slope, side.tangent)
        return slope, torch.addcmul(fixed_intercept, intercept, side.tangent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_slope, grad_intercept = grads
        need, shape = ctx.needs_input_grad, ctx.shape
        grad_alpha = None
        if need[0]:
            bend, point = ctx.saved_tensors
            grad_alpha = torch.addcmul(grad_slope, grad_intercept, point, value=-1).mul_(bend)
        return (
            grad_alpha,
            grad_slope.sum_to_size(shape) if need[1] else None,
            grad_intercept.sum_to_size(shape) if need[2] else None,
            None,
            None,
        )


@dataclass(frozen=True)
class Sigmoid(SShaped):
    """``y = 1 / (1 + exp(-x))``."""

    @property
    def steepness(self) -> float:
        return 1.0

    @property
    def height(self) -> float:
        return 1.0

    @property
    def symmetry(self) -> float:
        return 1.0

    def function(self, value: Tensor) -> Tensor:
        return torch.sigmoid(value)


@dataclass(frozen=True)
class Tanh(SShaped):
    """``y = tanh(x)``."""

    @property
    def steepness(self) -> float:
        return 2.0

    @property
    def height(self) -> float:
        return 2.0

    @property
    def symmetry(self) -> float:
        return 0.0

    def function(self, value: Tensor) -> Tensor:
        return torch.tanh(value)
