"""Softmax by differences of scores.

``softmax(x)_i = exp(x_i) / sum_j exp(x_j) = 1 / sum_j exp(x_j - x_i)``.

On the right each x enters through differences only, in which the backward pass cancels what all
scores have in common, and both nonlinear functions take one variable; on the left two dependent
perturbed values would be multiplied. The difference of an element with itself is exactly zero, so
the sum is at least one and its reciprocal never meets zero. The same form is used by Bonaert et al.
2021 (PLDI, "Fast and precise certification of transformers", section 5.2).

N scores have N (N - 1) differences. Where bounding each by a backward pass costs too much, the
scores are bounded instead, and the differences lie between differences of their bounds
(`ExpDifferences`).

Scores that are far apart overflow exp. Here exp is cut off at 20 (`SaturatingExp`): that adds at
most ``exp(-20) = 2.1e-9`` to a share, which its lower bound gives back (`Share`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.curves import Exp, Reciprocal
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines
from auto_LiRPA_patches.operators.relaxed import Relaxed
from auto_LiRPA_patches.operators.smooth import SmoothRelaxation
from auto_LiRPA_patches.sharding.weights import WeightSource

_SATURATION = 20.0
_LARGEST_TERM = math.exp(_SATURATION)
_CUT_OFF = math.exp(-_SATURATION)
# What a bound of the sum may be wrong by, in units in the last place of the sum's largest value.
_UNITS = 8


@dataclass(frozen=True)
class Differences(AffineOperator):
    """``y[.., i, j] = x[.., j] - x[.., i]`` on the last axis: ``[.., N] -> [.., N, N]``."""

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        if not absolute:
            return rows.unsqueeze(-2) - rows.unsqueeze(-1)
        both = rows.unsqueeze(-2) + rows.unsqueeze(-1)
        # x_i - x_i is zero whatever x_i is.
        same = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        return both * (1 - same)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return rows.sum(-2) - rows.sum(-1)

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ExpDifferences(Relaxed):
    """``y[.., i, j] = exp(x[.., j] - x[.., i])`` over bounds of x: ``[.., N] -> [.., N, N]``.

    Lines of exp over intervals of the differences; coarser than `Differences` and `Exp` one after
    the other, for N bounds instead of N squared.

    Attributes:
        saturates: exp is `SaturatingExp`.
    """

    saturates: bool = False

    @property
    def _exp(self) -> Exp:
        kind = SaturatingExp if self.saturates else Exp
        return kind(self.name, (self.output_shape,), self.output_shape)

    @property
    def _differences(self) -> Differences:
        return Differences(self.name, self.input_shapes, self.output_shape)

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return self._exp.function(self._differences.apply(weights, inputs[0]))

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        between = _differences_of_bounds(inputs[0])
        return self._exp.interval(weights, between)

    def relax(self, *bounds: Interval) -> SmoothRelaxation:
        return self._exp.relax(_differences_of_bounds(bounds[0]).flatten(), None)

    def initial_alpha(self, relaxation: SmoothRelaxation) -> Tensor:
        return self._exp.initial_alpha(relaxation)

    def lines(self, relaxation: SmoothRelaxation, alpha: Tensor | None) -> Lines:
        return self._exp.lines(relaxation, alpha)

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        (toward,), bias = self._exp.backward(weights, coeffs, lines)
        return (toward.sum(-2) - toward.sum(-1),), bias


@dataclass(frozen=True)
class SaturatingExp(Exp):
    """``y = exp(min(x, 20))``: convex up to 20, constant behind it; it never overflows."""

    def function(self, value: Tensor) -> Tensor:
        return torch.exp(value.clamp(max=_SATURATION))

    def slope(self, value: Tensor) -> Tensor:
        return self.function(value).masked_fill(value > _SATURATION, 0.0)

    def stationary(self, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return (torch.log(slope), torch.full_like(slope, _SATURATION))

    def slope_range(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        flattest = self.function(lower).masked_fill(upper > _SATURATION, 0.0)
        return flattest, self.function(upper).masked_fill(lower > _SATURATION, 0.0)


@dataclass(frozen=True)
class Share(Reciprocal):
    """``y = 1 / x`` of a sum of `SaturatingExp`, standing for 1 over the sum of exp itself.

    Claim: with s the sum of ``exp(d_j)`` and x that of ``exp(min(d_j, 20))``, bounds of ``1 / x``
    whose lower side is lowered by `_CUT_OFF` hold for ``1 / s``: nothing is cut off where
    x < exp(20), and elsewhere ``0 < 1 / s <= 1 / x <= exp(-20)`` or both are equal.

    One difference is that of a score with itself, so x >= 1. That is put in: among terms up to
    exp(20) the least value of a sum is lost to rounding.
    """

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        total = _at_least_one(inputs[0])
        lower = torch.reciprocal(total.upper) - _cut_off(total.upper)
        return Interval(lower.clamp(min=0), torch.reciprocal(total.lower))

    def relax(self, bounds: Interval, features: Tensor | None) -> SmoothRelaxation:
        return super().relax(_at_least_one(bounds), features)

    def _line(self, own: SmoothRelaxation, slope: Tensor, below: bool) -> tuple[Tensor, Tensor]:
        rounded, intercept = super()._line(own, slope, below)
        if below:
            intercept = intercept - _cut_off(own.upper).to(intercept.dtype)
        return rounded, intercept


def _at_least_one(total: Interval) -> Interval:
    """A sum's bounds, less what their rounding may be, and never below 1; a NaN stays."""
    noise = _UNITS * torch.finfo(total.upper.dtype).eps * total.upper.detach()
    return Interval((total.lower - noise).clamp(min=1), (total.upper + noise).clamp(min=1))


def _cut_off(largest: Tensor) -> Tensor:
    """What a share may be short of its counterpart, for sums up to `largest`."""
    return torch.full_like(largest, _CUT_OFF).masked_fill(largest < _LARGEST_TERM, 0.0)


def _differences_of_bounds(box: Interval) -> Interval:
    """Where ``x_j - x_i`` lies; exactly zero for i = j."""
    same = torch.eye(box.lower.shape[-1], dtype=torch.bool, device=box.lower.device)
    lower = box.lower.unsqueeze(-2) - box.upper.unsqueeze(-1)
    upper = box.upper.unsqueeze(-2) - box.lower.unsqueeze(-1)
    return Interval(lower.masked_fill(same, 0.0), upper.masked_fill(same, 0.0))
