"""Differentiable functions of one variable, bounded by lines of any slope.

Over [l, u] and for *every* slope m

    m v + min_w (f(w) - m w)  <=  f(v)  <=  m v + max_w (f(w) - m w),      v, w in [l, u],

and the extreme of f(w) - m w lies at an end point or where f'(w) = m. So an operator needs f, f'
and the solutions of f'(w) = m, and each line is sound whatever slope the optimiser asks for: α says
where m lies between the smallest and the largest derivative that is worth asking for. CROWN's own
lines have the chord's slope on both sides. They are parallel, so that what is nearly linear stays
so through a sum, and on the side a function bends away from no line is better than the chord.

Reference: Zhang et al. 2018 (arXiv 1811.00866), section 3.2, for lines of a general activation. The
slope as parameter, with the intercept by minimisation, is the conjugate of f restricted to [l, u]
(Rockafellar, Convex Analysis, 1970, section 12).

Everything is computed in float64; the intercept, rounded to the dtype of the bounds, is moved
outwards by one unit in the last place, so rounding of slope and intercept only loosens a line.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation, Relaxation, pick
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines

# Relative to the end points: below this width a quotient of differences is rounding noise.
_NARROW = 1e-6
# Slopes are cut here, where float32 still multiplies them by any sensible coefficient.
_STEEPEST = 1e18
# Keeps slope * end point zero where the slope is zero and the end point infinite.
_LARGEST = 1e300


@dataclass(frozen=True)
class SmoothRelaxation(Relaxation):
    """What lines of any slope start from, all ``[B, F]`` float64.

    Attributes:
        lower, upper: the bounds; one where f is not finite all over them.
        flattest, steepest: the least and the greatest slope α chooses between; equal where either
            bound is infinite or outside the function's domain.
        chord: CROWN's slope.
        inside: bool, whether f is finite all over the interval.
        precision: dtype of the lines.
    """

    lower: Tensor
    upper: Tensor
    flattest: Tensor
    steepest: Tensor
    chord: Tensor
    inside: Tensor
    precision: torch.dtype


@dataclass(frozen=True)
class Smooth(Activation):
    """``y_n = f(x_n)`` for a differentiable f, monotone or not."""

    @property
    def lower_is_free(self) -> bool:
        """Whether the lower line's slope is worth optimising (no: f is concave)."""
        return True

    @property
    def upper_is_free(self) -> bool:
        """Whether the upper line's slope is worth optimising (no: f is convex)."""
        return True

    @abstractmethod
    def slope(self, value: Tensor) -> Tensor:
        """f', elementwise."""

    @abstractmethod
    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        """Points among which all w in ``[lower, upper]`` with f'(w) = slope are that matter.

        Points outside the interval do no harm: they are moved to its nearest end. A NaN counts as
        no point.
        """

    @abstractmethod
    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest derivative over the interval (an estimate will do)."""

    def inside_domain(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Bool: f is defined and finite at every finite point of the interval."""
        return torch.ones_like(lower, dtype=torch.bool)

    def unstable(self, bounds: Interval) -> Tensor:
        return torch.ones(bounds.lower.shape[1], dtype=torch.bool, device=bounds.lower.device)

    def relax(self, bounds: Interval, features: Tensor | None) -> SmoothRelaxation:
        if features is not None and features.numel() != bounds.lower.shape[1]:
            raise ValueError(f"{self.name}: every element of a smooth function is relaxed")
        lower = pick(bounds.lower, features).double()
        upper = pick(bounds.upper, features).double()
        inside = self.inside_domain(lower, upper)
        usable = inside & torch.isfinite(lower) & torch.isfinite(upper)
        # Elsewhere the lines are horizontal. One is in every domain: no gradient meets an infinity.
        ones = torch.ones_like(lower)
        low, high = lower.where(usable, ones), upper.where(usable, ones)
        flattest, steepest = (_finite(part.detach()) for part in self.slope_range(low, high))
        chord = _finite(self._chord(low, high))
        zero = torch.zeros_like(chord)
        return SmoothRelaxation(
            None,
            lower.where(inside, ones),
            upper.where(inside, ones),
            flattest.where(usable, zero),
            steepest.where(usable, zero),
            chord.where(usable, zero),
            inside,
            bounds.lower.dtype,
        )

    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        own = self._own(relaxation)
        width = own.steepest - own.flattest
        share = (own.chord.detach() - own.flattest) / width.clamp(min=torch.finfo(width.dtype).tiny)
        share = torch.nan_to_num(share, nan=0.5).clamp(0, 1).to(own.precision)
        sides = int(self.lower_is_free) + int(self.upper_is_free)
        return share.unsqueeze(0).repeat(sides, 1, 1)

    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        own = self._own(relaxation)
        free = {"lower": self.lower_is_free, "upper": self.upper_is_free}
        slopes = {}
        position = 0
        for side, is_free in free.items():
            if is_free and alpha is not None:
                share = alpha[position].double()
                slopes[side] = own.flattest + share * (own.steepest - own.flattest)
                position += 1
            else:
                slopes[side] = own.chord.unsqueeze(0)
        lower_slope, lower_intercept = self._line(own, slopes["lower"], below=True)
        upper_slope, upper_intercept = self._line(own, slopes["upper"], below=False)
        return Lines(None, None, lower_slope, lower_intercept, upper_slope, upper_intercept)

    def _line(self, own: SmoothRelaxation, slope: Tensor, below: bool) -> tuple[Tensor, Tensor]:
        """Slope and intercept ``[s, B, F]`` of the lower or upper line, in the bounds' dtype."""
        rounded = slope.to(own.precision)
        exact = rounded.double()
        with torch.no_grad():
            inner = self.stationary(exact, own.lower, own.upper)
            points = [
                torch.minimum(torch.maximum(torch.nan_to_num(w, nan=0.0), own.lower), own.upper)
                for w in inner
            ]
        points += [own.lower.expand_as(exact), own.upper.expand_as(exact)]
        gaps = torch.stack(
            [self.function(w) - exact * w.clamp(-_LARGEST, _LARGEST) for w in points]
        )
        intercept = gaps.amin(0) if below else gaps.amax(0)
        # Where f is not finite throughout, no line is; the infinity proves nothing.
        nothing = -torch.inf if below else torch.inf
        intercept = intercept.where(own.inside, torch.full_like(intercept, nothing))
        unit = torch.finfo(own.precision).eps
        outwards = -1.0 if below else 1.0
        return rounded, (intercept + outwards * unit * intercept.detach().abs()).to(own.precision)

    def _chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        width = upper - lower
        size = 1 + torch.maximum(lower.detach().abs(), upper.detach().abs())
        narrow = width < _NARROW * size
        rise = self.function(upper) - self.function(lower)
        middle = self.slope((lower + upper) / 2)
        return middle.where(narrow, rise / width.where(~narrow, torch.ones_like(width)))

    def _own(self, relaxation: Relaxation) -> SmoothRelaxation:
        if not isinstance(relaxation, SmoothRelaxation):
            raise TypeError(f"{self.name}: expected a relaxation of a smooth function")
        return relaxation


def _finite(slope: Tensor) -> Tensor:
    """A slope that can be computed with; any slope is sound."""
    return torch.nan_to_num(slope, nan=0.0).clamp(-_STEEPEST, _STEEPEST)
