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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.curves import Exp
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines
from auto_LiRPA_patches.operators.relaxed import Relaxed
from auto_LiRPA_patches.operators.smooth import SmoothRelaxation
from auto_LiRPA_patches.sharding.weights import WeightSource


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
    """

    @property
    def _exp(self) -> Exp:
        return Exp(self.name, (self.output_shape,), self.output_shape)

    @property
    def _differences(self) -> Differences:
        return Differences(self.name, self.input_shapes, self.output_shape)

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return torch.exp(self._differences.apply(weights, inputs[0]))

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        between = _differences_of_bounds(inputs[0])
        return Interval(torch.exp(between.lower), torch.exp(between.upper))

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


def _differences_of_bounds(box: Interval) -> Interval:
    """Where ``x_j - x_i`` lies; exactly zero for i = j."""
    same = torch.eye(box.lower.shape[-1], dtype=torch.bool, device=box.lower.device)
    lower = box.lower.unsqueeze(-2) - box.upper.unsqueeze(-1)
    upper = box.upper.unsqueeze(-2) - box.lower.unsqueeze(-1)
    return Interval(lower.masked_fill(same, 0.0), upper.masked_fill(same, 0.0))
