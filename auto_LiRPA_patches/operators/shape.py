"""Operators that only move elements: reshape, transpose, slice, concatenate, pad."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import Operator
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Movement(Operator):
    """One input whose elements are moved, dropped or surrounded by a constant.

    Subclasses give the movement and its adjoint on ``[R, *shape]`` rows.
    """

    @abstractmethod
    def move(self, rows: Tensor) -> Tensor:
        """``[R, *input_shape] -> [R, *output_shape]``."""

    @abstractmethod
    def move_back(self, rows: Tensor) -> Tensor:
        """Adjoint of `move` (of its linear part): ``[R, *output_shape] -> [R, *input_shape]``."""

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return self.move(inputs[0])

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        return Interval(self.move(inputs[0].lower), self.move(inputs[0].upper))

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        rows = self.move_back(coeffs.flatten(0, 1))
        return (rows.unflatten(0, coeffs.shape[:2]),), None


@dataclass(frozen=True)
class Reshape(Movement):
    """Flatten, Reshape, Squeeze, Unsqueeze and the like: the same elements in the same order."""

    def move(self, rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], *self.output_shape)

    def move_back(self, rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0], *self.input_shapes[0])


@dataclass(frozen=True)
class Transpose(Movement):
    """Permutation of the axes behind the batch axis.

    Attributes:
        axes: for each output axis the input axis it comes from, both counted without the batch.
    """

    axes: tuple[int, ...]

    def move(self, rows: Tensor) -> Tensor:
        return rows.permute(0, *(axis + 1 for axis in self.axes))

    def move_back(self, rows: Tensor) -> Tensor:
        inverse = [self.axes.index(axis) + 1 for axis in range(len(self.axes))]
        return rows.permute(0, *inverse)


@dataclass(frozen=True)
class Select(Movement):
    """Slice, Gather and Split along one axis: elements at fixed positions.

    Attributes:
        axis: counted without the batch.
        index: positions along the axis, non-negative.
        drop_axis: a scalar Gather removes the axis.
    """

    axis: int
    index: tuple[int, ...]
    drop_axis: bool = False

    def move(self, rows: Tensor) -> Tensor:
        index = torch.tensor(self.index, device=rows.device)
        picked = rows.index_select(self.axis + 1, index)
        return picked.squeeze(self.axis + 1) if self.drop_axis else picked

    def move_back(self, rows: Tensor) -> Tensor:
        if self.drop_axis:
            rows = rows.unsqueeze(self.axis + 1)
        index = torch.tensor(self.index, device=rows.device)
        full = rows.new_zeros(rows.shape[0], *self.input_shapes[0])
        return full.index_add(self.axis + 1, index, rows)


@dataclass(frozen=True)
class Concat(Operator):
    """Concatenation of perturbed inputs along one axis (counted without the batch)."""

    axis: int

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=self.axis + 1)

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower = torch.cat([box.lower for box in inputs], dim=self.axis + 1)
        return Interval(lower, torch.cat([box.upper for box in inputs], dim=self.axis + 1))

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        sizes = [shape[self.axis] for shape in self.input_shapes]
        return coeffs.split(sizes, dim=self.axis + 2), None


@dataclass(frozen=True)
class ConstantPad(Movement):
    """ONNX Pad with a constant.

    Attributes:
        before, after: elements added (or, if negative, refused at load) per axis, without batch.
        value: the constant.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    value: float = 0.0

    def move(self, rows: Tensor) -> Tensor:
        pads = [n for axis in zip(self.before, self.after, strict=True) for n in reversed(axis)]
        return torch.nn.functional.pad(rows, pads[::-1], value=self.value)

    def move_back(self, rows: Tensor) -> Tensor:
        for axis, start in enumerate(self.before):
            rows = rows.narrow(axis + 1, start, self.input_shapes[0][axis])
        return rows

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        below, _ = super().backward(weights, coeffs, lines)
        if self.value == 0.0:
            return below, None
        inside = below[0].flatten(2).sum(-1)
        return below, (coeffs.flatten(2).sum(-1) - inside) * self.value
