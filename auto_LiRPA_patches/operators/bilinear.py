"""Products of two perturbed values: elementwise, and of two matrices.

For x in [lx, ux] and y in [ly, uy] (each term of a matrix product alike), McCormick's planes are

    x y >= ly x + lx y - lx ly    and    x y >= uy x + ux y - ux uy,
    x y <= uy x + lx y - lx uy    and    x y <= ly x + ux y - ux ly.

Any mixture ``t * first + (1 - t) * second`` with t in [0, 1] is a plane on the same side: t is
this operator's α, one per term and side. CROWN's own planes have t = 1/2 on both sides: their
slopes are the other operand's centre, the derivative of the product there, so both planes are
parallel, what is affine in the input stays so, and their distance from x y is at most 2 rx ry
instead of 4 rx ry (rx, ry half the widths).

Reference: G. P. McCormick, Computability of global solutions to factorable nonconvex programs,
Math. Programming 10 (1976), section 2; the mixture for transformers in Shi et al. 2020
(arXiv 2002.06622), appendix A, where one of the two planes is chosen.

Shapes: S rows, B boxes; T terms of one value. A relaxation keeps bounds aligned to the terms.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.arithmetic import align, sum_to_shape
from auto_LiRPA_patches.operators.base import Shape, num_elements
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.relaxed import Relaxed
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Factors:
    """The bounds of both factors, ``[B, *shape]`` each, as the operator multiplies them."""

    x: Interval
    y: Interval


@dataclass(frozen=True)
class Planes:
    """Planes for a set of rows.

    Attributes:
        factors: what they were made from.
        below, above: ``[S or 1, B, *term_shape]`` the share t of the first plane on each side;
            None = 1/2 for every term.
    """

    factors: Factors
    below: Tensor | None = None
    above: Tensor | None = None


@dataclass(frozen=True)
class Bilinear(Relaxed):
    """Common part; subclasses say what a term is and how terms are added up."""

    @property
    def scratch_elements(self) -> int:
        return num_elements(self.term_shape)

    @property
    @abstractmethod
    def term_shape(self) -> Shape:
        """Shape of all products of two numbers, without the batch axis."""

    @abstractmethod
    def relax(self, *bounds: Interval) -> Factors:
        """Align the factors' bounds ``[B, *input_shape]``; differentiable in them."""

    def initial_alpha(self, relaxation: Factors) -> Tensor:
        """``[2, B, T]``: t = 1/2 for every term on the lower and on the upper side."""
        bound = relaxation.x.lower
        return bound.new_full((2, bound.shape[0], num_elements(self.term_shape)), 0.5)

    def lines(self, relaxation: Factors, alpha: Tensor | None) -> Planes:
        """Planes for ``alpha [2, S or 1, B, T]`` in [0, 1], or CROWN's own for None."""
        if alpha is None:
            return Planes(relaxation)
        below, above = alpha.unflatten(-1, self.term_shape)
        return Planes(relaxation, below, above)

    def _planes(self, lines: Any | None) -> Planes:
        if not isinstance(lines, Planes):
            raise TypeError(f"{self.name}: a product needs the planes of its factors' bounds")
        return lines


@dataclass(frozen=True)
class Product(Bilinear):
    """Elementwise ``x * y``, each broadcast to the output's shape."""

    @property
    def term_shape(self) -> Shape:
        return self.output_shape

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return self._aligned(0, inputs[0]) * self._aligned(1, inputs[1])

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        factors = self.relax(*inputs)
        return _term_interval(factors.x, factors.y)

    def relax(self, *bounds: Interval) -> Factors:
        x, y = bounds
        return Factors(
            Interval(self._aligned(0, x.lower), self._aligned(0, x.upper)),
            Interval(self._aligned(1, y.lower), self._aligned(1, y.upper)),
        )

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        planes = self._planes(lines)
        x, y = planes.factors.x, planes.factors.y
        below = 0.5 if planes.below is None else planes.below
        above = 0.5 if planes.above is None else planes.above
        positive, negative = coeffs.clamp(min=0), coeffs.clamp(max=0)
        width_x, width_y = x.upper - x.lower, y.upper - y.lower
        toward_x = positive * (y.upper - below * width_y) + negative * (y.lower + above * width_y)
        toward_y = positive * (x.upper - below * width_x) + negative * (x.upper - above * width_x)
        low, high = x.upper * y.upper, x.upper * y.lower
        low = low + below * (x.lower * y.lower - low)
        high = high + above * (x.lower * y.upper - high)
        bias = -(positive * low + negative * high).flatten(2).sum(-1)
        x_shape, y_shape = self.input_shapes
        return (sum_to_shape(toward_x, x_shape), sum_to_shape(toward_y, y_shape)), bias

    def _aligned(self, position: int, value: Tensor) -> Tensor:
        return align(value, self.input_shapes[position], self.output_shape)


@dataclass(frozen=True)
class MatrixProduct(Bilinear):
    """``z[.., i, j] = sum_k x[.., i, k] y[.., k, j]``; the axes in front are broadcast.

    Term shape: ``[.., I, K, J]``.
    """

    @property
    def term_shape(self) -> Shape:
        rows, inner = self.input_shapes[0][-2:]
        return (*self._front, rows, inner, self.input_shapes[1][-1])

    @property
    def _front(self) -> Shape:
        return self.output_shape[:-2]

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return self._aligned(0, inputs[0]) @ self._aligned(1, inputs[1])

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        factors = self.relax(*inputs)
        total: Interval | None = None
        # Term by term, so that no tensor of all terms is made.
        for k in range(self.input_shapes[0][-1]):
            x = _each(factors.x, lambda v: v[..., :, k : k + 1])  # noqa: B023
            y = _each(factors.y, lambda v: v[..., k : k + 1, :])  # noqa: B023
            term = _term_interval(x, y)
            total = term if total is None else _sum(total, term)
        if total is None:
            raise ValueError(f"{self.name}: a product over an axis of no elements")
        return total

    def relax(self, *bounds: Interval) -> Factors:
        x, y = bounds
        return Factors(
            _each(x, lambda value: self._aligned(0, value)),
            _each(y, lambda value: self._aligned(1, value)),
        )

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        planes = self._planes(lines)
        if planes.below is None or planes.above is None:
            (toward_x, toward_y), bias = self._middle(coeffs, planes.factors)
        else:
            (toward_x, toward_y), bias = self._mixed(
                coeffs, planes.factors, planes.below, planes.above
            )
        x_shape, y_shape = self.input_shapes
        return (sum_to_shape(toward_x, x_shape), sum_to_shape(toward_y, y_shape)), bias

    def _middle(self, coeffs: Tensor, factors: Factors) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """t = 1/2: products of A with the factors' centres, whatever A's signs."""
        x, y = factors.x, factors.y
        low = (x.lower @ y.lower + x.upper @ y.upper) / 2
        high = (x.lower @ y.upper + x.upper @ y.lower) / 2
        bias = coeffs.clamp(min=0) * low + coeffs.clamp(max=0) * high
        toward_x, toward_y = _toward_x(coeffs, y.center), _toward_y(coeffs, x.center)
        return (toward_x, toward_y), -bias.flatten(2).sum(-1)

    def _mixed(
        self, coeffs: Tensor, factors: Factors, below: Tensor, above: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """The planes at t = 0 as products of matrices, and what each term's t adds to them."""
        x, y = factors.x, factors.y
        positive, negative = coeffs.clamp(min=0), coeffs.clamp(max=0)
        first = positive.unsqueeze(-2) * below
        second = negative.unsqueeze(-2) * above
        width_x, width_y = (x.upper - x.lower).unsqueeze(-1), (y.upper - y.lower).unsqueeze(-3)
        toward_x = _toward_x(positive, y.upper) + _toward_x(negative, y.lower)
        toward_x = toward_x + ((second - first) * width_y).sum(-1)
        toward_y = _toward_y(coeffs, x.upper) - ((first + second) * width_x).sum(-3)
        x_low, x_high = x.lower.unsqueeze(-1), x.upper.unsqueeze(-1)
        y_low, y_high = y.lower.unsqueeze(-3), y.upper.unsqueeze(-3)
        moved = first * (x_high * y_high - x_low * y_low) + second * (
            x_high * y_low - x_low * y_high
        )
        fixed = positive * (x.upper @ y.upper) + negative * (x.upper @ y.lower)
        bias = moved.flatten(2).sum(-1) - fixed.flatten(2).sum(-1)
        return (toward_x, toward_y), bias

    def _aligned(self, position: int, value: Tensor) -> Tensor:
        shape = self.input_shapes[position]
        return align(value, shape, (*self._front, *shape[-2:]))


def _toward_x(coeffs: Tensor, y: Tensor) -> Tensor:
    """``A yᵀ`` for ``A [S, B, .., I, J]``; einsum joins S and I in one matrix product."""
    return torch.einsum("sb...ij,b...kj->sb...ik", coeffs, y)


def _toward_y(coeffs: Tensor, x: Tensor) -> Tensor:
    """``xᵀ A``."""
    return torch.einsum("sb...ij,b...ik->sb...kj", coeffs, x)


def _each(box: Interval, change: Any) -> Interval:
    return Interval(change(box.lower), change(box.upper))


def _sum(left: Interval, right: Interval) -> Interval:
    return Interval(left.lower + right.lower, left.upper + right.upper)


def _term_interval(x: Interval, y: Interval) -> Interval:
    """The range of ``x * y`` over the box: it is attained at a corner."""
    corners = [a * b for a in (x.lower, x.upper) for b in (y.lower, y.upper)]
    smallest = torch.minimum(torch.minimum(corners[0], corners[1]), torch.minimum(*corners[2:]))
    largest = torch.maximum(torch.maximum(corners[0], corners[1]), torch.maximum(*corners[2:]))
    return Interval(smallest, largest)
