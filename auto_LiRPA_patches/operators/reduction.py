"""Sums and means over axes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Reduction(AffineOperator):
    """ReduceSum and ReduceMean: ``y = factor * sum over axes of x``.

    Attributes:
        axes: counted without the batch; not negative, ascending.
        keep_axes: a reduced axis stays, with size 1.
        factor: 1, or one over the number of elements for a mean.
    """

    axes: tuple[int, ...]
    keep_axes: bool = False
    factor: float = 1.0

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        total = rows.sum([axis + 1 for axis in self.axes], keepdim=self.keep_axes)
        # A value of no axes is a vector of one element here.
        return (total * self.factor).reshape(rows.shape[0], *self.output_shape)

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        # All coefficients are positive: ends go to ends, and an infinite one stays on its side.
        box = inputs[0]
        return Interval(self.apply(weights, box.lower), self.apply(weights, box.upper))

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        shape = self.input_shapes[0]
        kept = [1 if axis in self.axes else size for axis, size in enumerate(shape)]
        spread = rows.reshape(rows.shape[0], *kept) * self.factor
        return spread.expand(rows.shape[0], *shape)

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None
