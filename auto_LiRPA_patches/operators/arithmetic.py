"""Sums of perturbed values, and how values of different shapes meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
            term = align(value, shape, self.output_shape)
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


def align(value: Tensor, shape: Shape, target: Shape) -> Tensor:
    """``[B, *shape]`` broadcast to ``[B, *target]``; leading axes of `target` come after B."""
    if shape == target:
        return value
    ones = (1,) * (len(target) - len(shape))
    return value.reshape(value.shape[0], *ones, *shape).expand(value.shape[0], *target)
