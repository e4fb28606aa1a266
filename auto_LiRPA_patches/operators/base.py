"""What the engine asks of an operator.

An operator is immutable, knows the shapes of its inputs and output without the batch axis, and
reaches its parameters only through a `WeightSource`, so that each sharding mode is written once.

Bound propagation carries coefficient matrices. For a scalar functional of the start node,
``bound(x) = sum_n A[s, b, n] * node_n(x) + bias[s, b]`` is a *lower* bound; an upper bound is the
negated lower bound of the negated functional, so one direction suffices (rows come in pairs
+e, -e).

Shapes: S rows (specification rows or start neurons), B input boxes, R = S * B flattened rows.
Layout: everything here is local to a rank; rows may be any subset, parameters are full tensors
for the duration of one operator call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource

Shape = tuple[int, ...]


def num_elements(shape: Shape) -> int:
    """Number of elements of one value of `shape`."""
    count = 1
    for size in shape:
        count *= size
    return count


@dataclass(frozen=True)
class Operator(ABC):
    """One node's mathematics: value, interval and backward step.

    Attributes:
        name: the node's name in the graph, for messages.
        input_shapes: shapes of the perturbed inputs without the batch axis.
        output_shape: shape of the output without the batch axis.
    """

    name: str
    input_shapes: tuple[Shape, ...]
    output_shape: Shape

    @property
    def needs_bounds(self) -> bool:
        """Whether `relax` wants bounds of the inputs (the operator is not affine in them)."""
        return False

    @cached_property
    def handles(self) -> tuple[WeightHandle, ...]:
        """The parameters, in about the order in which a step gathers them."""
        found: list[WeightHandle] = []
        for field in fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            found.extend(each for each in values if isinstance(each, WeightHandle))
        return tuple(found)

    @abstractmethod
    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        """Value: ``[B, *input_shape]`` each -> ``[B, *output_shape]``; differentiable."""

    @abstractmethod
    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        """Interval image: for all v in `inputs`, ``lower <= forward(v) <= upper``. No gradient."""

    @abstractmethod
    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """One step of backward bound propagation, differentiable in `coeffs` and `lines`.

        Args:
            weights: where parameters are read.
            coeffs: ``[S, B, *output_shape]``.
            lines: the relaxation of this node for these rows; None for affine operators.

        Returns:
            Coefficients ``[S, B, *input_shape]`` per input and a bias ``[S, B]`` (None = zero)
            such that ``coeffs . output >= sum_i new_i . input_i + bias`` for all inputs within
            the bounds that `lines` was made from; equality for affine operators.
        """


@dataclass(frozen=True)
class AffineOperator(Operator):
    """``y = L x + b`` for one input, L given by parameters: Linear, convolutions, BatchNorm.

    Subclasses give L, its adjoint and |L| on flattened rows; this class makes value, interval and
    backward step of them, and sees to it that autograd keeps no parameter: the gradient pass asks
    the `WeightSource` again.
    """

    @abstractmethod
    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        """``L rows`` (or ``|L| rows``): ``[R, *input_shape] -> [R, *output_shape]``."""

    @abstractmethod
    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        """``L^T rows``: ``[R, *output_shape] -> [R, *input_shape]``."""

    def image(self, weights: WeightSource, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """``L center`` and ``|L| radius``, both ``[R, *output_shape]``."""
        with weights.gathering_once():
            return self.apply(weights, center), self.apply(weights, radius, absolute=True)

    @abstractmethod
    def offset(self, weights: WeightSource) -> Tensor | None:
        """b, broadcastable to ``output_shape``; None when there is none."""

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return _value(inputs[0], self, weights)
        return _AffineValue.apply(inputs[0], self, weights)

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        box = inputs[0]
        with torch.no_grad():
            center, radius = self.image(weights, box.center, box.radius)
            offset = self.offset(weights)
            if offset is not None:
                center = center + offset
        return Interval(center - radius, center + radius)

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        # Without a graph to make, the detour through autograd only takes time.
        step = _AffineStep.apply if torch.is_grad_enabled() else _step
        below, bias = step(coeffs, self, weights)
        return (below,), bias

    def select_rows(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        """``sign_r * (row index_r of L)`` as ``[R, *input_shape]`` without a product, or None.

        The backward step of a one-hot start. None means: build the one-hot rows instead.
        """
        return None

    def select_offset(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        """``sign_r * b[index_r]`` as ``[R]``, the bias that goes with `select_rows`."""
        vector = _offset_vector(self, weights)
        return None if vector is None else vector[index] * sign


class _AffineValue(torch.autograd.Function):
    """``L x + b``; its gradient asks for the parameters again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: AffineOperator, weights: WeightSource) -> Tensor:
        ctx.operator, ctx.weights = operator, weights
        return _value(x, operator, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.operator.adjoint(ctx.weights, grads[0]), None, None


class _AffineStep(torch.autograd.Function):
    """``A -> (A L, A b)``; its gradient asks for the parameters again."""

    @staticmethod
    def forward(
        ctx: Any, coeffs: Tensor, operator: AffineOperator, weights: WeightSource
    ) -> tuple[Tensor, Tensor | None]:
        ctx.operator, ctx.weights = operator, weights
        return _step(coeffs, operator, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        below, bias = grads
        operator: AffineOperator = ctx.operator
        rows_shape = below.shape[:2]
        above = operator.apply(ctx.weights, below.flatten(0, 1)).flatten(1)
        if bias is not None:
            vector = _offset_vector(operator, ctx.weights)
            if vector is not None:
                above = torch.addr(above, bias.flatten(), vector)
        return above.view(*rows_shape, *operator.output_shape), None, None


def _value(x: Tensor, operator: AffineOperator, weights: WeightSource) -> Tensor:
    y = operator.apply(weights, x)
    offset = operator.offset(weights)
    if offset is None:
        return y
    return y + offset if y.requires_grad else y.add_(offset)


def _step(
    coeffs: Tensor, operator: AffineOperator, weights: WeightSource
) -> tuple[Tensor, Tensor | None]:
    rows_shape = coeffs.shape[:2]
    rows = coeffs.flatten(0, 1)
    # Shapes are changed only where they do change: branch and bound comes here so often that the
    # calls alone are felt.
    below = operator.adjoint(weights, rows)
    below = below.view(*rows_shape, *below.shape[1:])
    vector = _offset_vector(operator, weights)
    if vector is None:
        return below, None
    flat = rows if rows.dim() == 2 else rows.flatten(1)
    return below, torch.mv(flat, vector).view(rows_shape)


def _offset_vector(operator: AffineOperator, weights: WeightSource) -> Tensor | None:
    offset = operator.offset(weights)
    if offset is None or offset.shape == operator.output_shape and offset.dim() == 1:
        return offset
    return offset.expand(operator.output_shape).reshape(-1)


def sum_bias(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Sum of the given ``[S, B]`` biases, None standing for zero."""
    total: Tensor | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total
