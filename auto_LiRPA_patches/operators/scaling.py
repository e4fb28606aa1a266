"""Elementwise multiplication by and addition of constants: normalisation, Sub, Div, Neg."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True)
class ScaleShift(AffineOperator):
    """``y = factor * scale * x + sign * shift``, constants broadcast to the input's shape.

    The input itself is never broadcast: its shape is the output's shape.

    Attributes:
        scale: handle of a constant, or None for one.
        shift: handle of a constant, or None for zero.
        factor: a number: 1; -1 of ``c - x``; log b of ``b^x``; 0 of ``x^0``.
        shift_sign: 1 or -1 (``x - c`` has -1).
        divide: the constant `scale` divides instead of multiplying.
    """

    scale: WeightHandle | None = None
    shift: WeightHandle | None = None
    factor: float = 1.0
    shift_sign: float = 1.0
    divide: bool = False

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        factor = abs(self.factor) if absolute else self.factor
        if self.scale is None:
            return rows * factor
        scale = weights.gather(self.scale)
        scale = (scale.abs() if absolute else scale) * factor
        return rows / scale if self.divide else rows * scale

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return self.apply(weights, rows)

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None if self.shift is None else weights.gather(self.shift) * self.shift_sign
