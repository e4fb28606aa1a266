"""Sums and products of perturbed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import Operator, Shape
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.weights import WeightSource


def sum_to_shape(coeffs: Tensor, shape: Shape) -> Tensor:
    """Adjoint of broadcasting ``[S, B, *shape]`` to the shape of `coeffs`."""
    extra = coeffs.dim() - 2 - len(shape)
    if extra:
        coeffs = coeffs.flatten(2, 1 + extra).sum(2) if extra > 0 else coeffs
    for axis, size in enumerate(shape):
        if size == 1 and coeffs.shape[2 + axis] != 1:
            coeffs = coeffs.sum(2 + axis, keepdim=True)
    return coeffs


@dataclass(frozen=True)
class Sum(Operator):
    """``y = sum_i sign_i * x_i`` of perturbed inputs, each broadcast to the output's shape."""

    signs: tuple[float, ...]

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        total = None
        for sign, value, shape in zip(self.signs, inputs, self.input_shapes, strict=True):
            term = _align(value, shape, self.output_shape)
            term = term if sign == 1.0 else term * sign
            total = term if total is None else total + term
        if total is None:
            raise ValueError(f"{self.name}: a sum of no inputs")
        return total

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        flipped = [
            box if sign > 0 else Interval(-box.upper, -box.lower)
            for sign, box in zip(self.signs, inputs, strict=True)
        ]
        plus = Sum(self.name, self.input_shapes, self.output_shape, (1.0,) * len(inputs))
        lower = plus.forward(weights, *(box.lower for box in flipped))
        return Interval(lower, plus.forward(weights, *(box.upper for box in flipped)))

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        below = []
        for sign, shape in zip(self.signs, self.input_shapes, strict=True):
            part = sum_to_shape(coeffs, shape)
            below.append(part if sign == 1.0 else part * sign)
        return tuple(below), None


@dataclass(frozen=True)
class ProductPlanes:
    """McCormick planes of ``x * y`` over a box; each field ``[B, *output_shape]``.

    Claim, for all (x, y) in the box:
    ``low_x x + low_y y + low_c <= x y <= up_x x + up_y y + up_c``.
    """

    low_x: Tensor
    low_y: Tensor
    low_c: Tensor
    up_x: Tensor
    up_y: Tensor
    up_c: Tensor


@dataclass(frozen=True)
class Product(Operator):
    """Elementwise product of two perturbed values, relaxed by McCormick's planes.

    Reference: G. P. McCormick, Computability of global solutions to factorable nonconvex
    programs, Math. Programming 10 (1976), section 2.
    """

    @property
    def needs_bounds(self) -> bool:
        return True

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        x, y = self._aligned(*inputs)
        return x * y

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        x_low, y_low = self._aligned(inputs[0].lower, inputs[1].lower)
        x_up, y_up = self._aligned(inputs[0].upper, inputs[1].upper)
        corners = torch.stack([x_low * y_low, x_low * y_up, x_up * y_low, x_up * y_up])
        return Interval(corners.amin(0), corners.amax(0))

    def relax(self, x: Interval, y: Interval) -> ProductPlanes:
        """Planes that touch x*y in the lower left and lower right corner of the box."""
        x_low, y_low = self._aligned(x.lower, y.lower)
        x_up, y_up = self._aligned(x.upper, y.upper)
        return ProductPlanes(y_low, x_low, -x_low * y_low, y_up, x_low, -x_low * y_up)

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        if not isinstance(lines, ProductPlanes):
            raise TypeError(f"{self.name}: a product needs the planes of its inputs' bounds")
        positive, negative = coeffs.clamp(min=0), coeffs.clamp(max=0)
        toward_x = positive * lines.low_x + negative * lines.up_x
        toward_y = positive * lines.low_y + negative * lines.up_y
        bias = (positive * lines.low_c + negative * lines.up_c).flatten(2).sum(-1)
        x_shape, y_shape = self.input_shapes
        return (sum_to_shape(toward_x, x_shape), sum_to_shape(toward_y, y_shape)), bias

    def _aligned(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (
            _align(x, self.input_shapes[0], self.output_shape),
            _align(y, self.input_shapes[1], self.output_shape),
        )


def _align(value: Tensor, shape: Shape, target: Shape) -> Tensor:
    """``[B, *shape]`` broadcast to ``[B, *target]``; leading axes of `target` come after B."""
    if shape == target:
        return value
    ones = (1,) * (len(target) - len(shape))
    return value.reshape(value.shape[0], *ones, *shape).expand(value.shape[0], *target)
