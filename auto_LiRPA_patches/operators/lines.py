"""Two lines around an elementwise function, and the backward step through them.

For every element n of a node and every input within its bounds [l, u]

    lower_slope * v + lower_intercept <= f(v) <= upper_slope * v + upper_intercept.

A coefficient A >= 0 takes the lower line, A < 0 the upper one (Zhang et al. 2018,
arXiv 1811.00866, theorem 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lines:
    """Lines of one node for a set of rows; s is 1 (shared by all rows) or S (one per row).

    Attributes:
        index: ``[F]`` the features relaxed, into the N flattened elements; None = all of them.
        pass_through: ``[B, N]`` exact slope of the features not in `index` (through zero).
        lower_slope, upper_slope: ``[s, B, F]``.
        lower_intercept, upper_intercept: ``[s, B, F]`` or None for zero.
    """

    index: Tensor | None
    pass_through: Tensor | None
    lower_slope: Tensor
    lower_intercept: Tensor | None
    upper_slope: Tensor
    upper_intercept: Tensor | None


def step_through(coeffs: Tensor, lines: Lines) -> tuple[Tensor, Tensor | None]:
    """Backward step of ``coeffs [S, B, N]`` through `lines`: new coefficients and bias ``[S, B]``.

    Claim: ``coeffs . f(v) >= new . v + bias`` for all v within the bounds behind `lines`.
    """
    return _LinesStep.apply(
        coeffs,
        lines.lower_slope,
        lines.lower_intercept,
        lines.upper_slope,
        lines.upper_intercept,
        lines.index,
        lines.pass_through,
    )


class _LinesStep(torch.autograd.Function):
    """Keeps only the relaxed columns of A for the gradient, and one temporary at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        coeffs: Tensor,
        lower_slope: Tensor,
        lower_intercept: Tensor | None,
        upper_slope: Tensor,
        upper_intercept: Tensor | None,
        index: Tensor | None,
        pass_through: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        relaxed = coeffs if index is None else coeffs.index_select(2, index)
        positive = relaxed.clamp(min=0)
        negative = relaxed - positive
        through = positive * lower_slope
        through.addcmul_(negative, upper_slope.expand_as(negative))
        if index is None:
            below = through
        else:
            if pass_through is None:
                raise ValueError("lines over some features need the slope of the others")
            below = coeffs * pass_through
            below.index_copy_(2, index, through)
        bias = None
        if lower_intercept is not None:
            bias = (positive * lower_intercept).sum(-1)
        if upper_intercept is not None:
            upper_bias = (negative * upper_intercept).sum(-1)
            bias = upper_bias if bias is None else bias + upper_bias
        ctx.index = index
        ctx.save_for_backward(
            relaxed, lower_slope, lower_intercept, upper_slope, upper_intercept, pass_through
        )
        return below, bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_below, grad_bias = grads
        relaxed, lower_slope, lower_intercept, upper_slope, upper_intercept, pass_through = (
            ctx.saved_tensors
        )
        index = ctx.index
        grad_through = grad_below if index is None else grad_below.index_select(2, index)
        grad_bias = None if grad_bias is None else grad_bias.unsqueeze(-1)
        need = ctx.needs_input_grad
        positive = relaxed.clamp(min=0)
        negative = relaxed - positive
        grads_out: list[Tensor | None] = [None] * 7
        if need[0]:
            upward = _line_gradient(grad_through, grad_bias, lower_slope, lower_intercept)
            downward = _line_gradient(grad_through, grad_bias, upper_slope, upper_intercept)
            grad_relaxed = torch.where(relaxed >= 0, upward, downward)
            if index is None:
                grads_out[0] = grad_relaxed
            else:
                grad_coeffs = grad_below * pass_through
                grads_out[0] = grad_coeffs.index_copy_(2, index, grad_relaxed)
        if need[1]:
            grads_out[1] = _reduce_rows(grad_through * positive, lower_slope)
        if need[2] and lower_intercept is not None and grad_bias is not None:
            grads_out[2] = _reduce_rows(grad_bias * positive, lower_intercept)
        if need[3]:
            grads_out[3] = _reduce_rows(grad_through * negative, upper_slope)
        if need[4] and upper_intercept is not None and grad_bias is not None:
            grads_out[4] = _reduce_rows(grad_bias * negative, upper_intercept)
        return tuple(grads_out)


def _line_gradient(
    grad_through: Tensor, grad_bias: Tensor | None, slope: Tensor, intercept: Tensor | None
) -> Tensor:
    gradient = grad_through * slope
    if intercept is None or grad_bias is None:
        return gradient
    return gradient.addcmul_(grad_bias.expand_as(gradient), intercept.expand_as(gradient))


def _reduce_rows(gradient: Tensor, like: Tensor) -> Tensor:
    """Adjoint of sharing one line among all rows."""
    return gradient.sum(0, keepdim=True) if like.shape[0] == 1 != gradient.shape[0] else gradient
