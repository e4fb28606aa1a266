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

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation, Relaxation, pick
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines

_BISECTIONS = 40
# Below this width the chord's slope would be rounding noise; a secant-free line is used instead.
_NARROW = 1e-3


@dataclass(frozen=True)
class Side:
    """Lower line of f over one side's interval ``[lower, upper]``, each ``[B, F]``.

    Attributes:
        furthest: d*, the right-most sound tangent point.
        use_tangent: where a tangent (rather than a fixed line) is the lower line.
        fixed_slope, fixed_intercept: the line used elsewhere.
    """

    lower: Tensor
    furthest: Tensor
    use_tangent: Tensor
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
    """Common part of Sigmoid and Tanh; subclasses give f, f' and f(x) + f(-x)."""

    @property
    @abstractmethod
    def symmetry(self) -> float:
        """The constant f(x) + f(-x)."""

    @abstractmethod
    def slope(self, value: Tensor) -> Tensor:
        """f', elementwise."""

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

    def _side(self, lower: Tensor, upper: Tensor) -> Side:
        with torch.no_grad():
            furthest = self._furthest_tangent(lower, upper)
            narrow = upper - lower < _NARROW
            use_tangent = (lower < 0) & (furthest > lower) & ~narrow
            start = torch.where(upper <= 0, 0.5, 1.0).to(lower.dtype)
        value_lower, value_upper = self.function(lower), self.function(upper)
        width = torch.where(narrow, torch.ones_like(lower), upper - lower)
        chord = (value_upper - value_lower) / width
        # Mean value theorem with the smallest derivative, at an end point: sound at any width.
        flattest = torch.minimum(self.slope(lower), self.slope(upper))
        fixed_slope = torch.where(narrow, flattest, chord)
        fixed_intercept = value_lower - fixed_slope * lower
        return Side(lower, furthest, use_tangent, fixed_slope, fixed_intercept, start)

    def _line(self, side: Side, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and intercept ``[S, B, F]`` of the lower line for ``alpha [S, B, F]``."""
        start = side.lower.detach()
        # Counted from d*, which rounding must not overstep: far from zero, l + (d* - l) does.
        point = side.furthest - (1 - alpha) * (side.furthest - start)
        tangent = self.slope(point)
        slope = torch.where(side.use_tangent, tangent, side.fixed_slope)
        at_zero = self.function(point) - tangent * point
        return slope, torch.where(side.use_tangent, at_zero, side.fixed_intercept)

    def _furthest_tangent(self, lower: Tensor, upper: Tensor) -> Tensor:
        """d* by bisection in float64; the sound end of the last bracket is returned.

        For upper > 0 it lies in [-upper, 0]: the tangent at -upper has the smallest derivative
        of [-upper, upper], so it passes below (upper, f(upper)).
        """
        end = upper.double()
        sound, unsound = -end.clamp(min=0), torch.zeros_like(end)
        target = self.function(end)
        for _ in range(_BISECTIONS):
            middle = (sound + unsound) / 2
            below = self.function(middle) + self.slope(middle) * (end - middle) <= target
            sound, unsound = torch.where(below, middle, sound), torch.where(below, unsound, middle)
        furthest = torch.where(end <= 0, end, sound).to(lower.dtype)
        return torch.maximum(furthest, lower)

    def _own(self, relaxation: Relaxation) -> SShapedRelaxation:
        if not isinstance(relaxation, SShapedRelaxation):
            raise TypeError(f"{self.name}: expected an S-shaped relaxation")
        return relaxation


@dataclass(frozen=True)
class Sigmoid(SShaped):
    """``y = 1 / (1 + exp(-x))``."""

    @property
    def symmetry(self) -> float:
        return 1.0

    def function(self, value: Tensor) -> Tensor:
        return torch.sigmoid(value)

    def slope(self, value: Tensor) -> Tensor:
        return torch.sigmoid(value) * torch.sigmoid(-value)


@dataclass(frozen=True)
class Tanh(SShaped):
    """``y = tanh(x)``."""

    @property
    def symmetry(self) -> float:
        return 0.0

    def function(self, value: Tensor) -> Tensor:
        return torch.tanh(value)

    def slope(self, value: Tensor) -> Tensor:
        # 1 - tanh^2 is rounding noise in the tails, and a tangent there spans wide intervals.
        return 4 * torch.sigmoid(2 * value) * torch.sigmoid(-2 * value)
