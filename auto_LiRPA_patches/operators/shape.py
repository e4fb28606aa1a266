"""Operators that only move elements: reshape, transpose, slice, concatenate, pad."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.arithmetic import align, sum_to_shape
from auto_LiRPA_patches.operators.base import Operator, sum_bias
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


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

    @property
    def _is_range(self) -> bool:
        """Neighbours in ascending order: a view, where picking by index copies slowly."""
        return self.index == tuple(range(self.index[0], self.index[0] + len(self.index)))

    def move(self, rows: Tensor) -> Tensor:
        axis = self.axis + 1
        if self._is_range:
            picked = rows.narrow(axis, self.index[0], len(self.index))
        else:
            picked = rows.index_select(axis, torch.tensor(self.index, device=rows.device))
        return picked.squeeze(axis) if self.drop_axis else picked

    def move_back(self, rows: Tensor) -> Tensor:
        axis = self.axis + 1
        if self.drop_axis:
            rows = rows.unsqueeze(axis)
        if self._is_range:
            behind = rows.dim() - 1 - axis
            after = self.input_shapes[0][self.axis] - self.index[0] - len(self.index)
            return torch.nn.functional.pad(rows, [0, 0] * behind + [self.index[0], after])
        full = rows.new_zeros(rows.shape[0], *self.input_shapes[0])
        return full.index_add(axis, torch.tensor(self.index, device=rows.device), rows)


@dataclass(frozen=True)
class Broadcast(Movement):
    """Expand: axes of size 1 are repeated, and new ones put in front."""

    def move(self, rows: Tensor) -> Tensor:
        return align(rows, self.input_shapes[0], self.output_shape)

    def move_back(self, rows: Tensor) -> Tensor:
        return sum_to_shape(rows.unsqueeze(0), self.input_shapes[0]).squeeze(0)


@dataclass(frozen=True)
class Concat(Operator):
    """Concatenation along one axis of perturbed inputs and constants.

    Attributes:
        axis: counted without the batch.
        constants: per operand in their order a constant ``[1, *shape]``, None for a perturbed
            input; empty when there are no constants.
    """

    axis: int
    constants: tuple[WeightHandle | None, ...] = ()

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return torch.cat(self._parts(weights, list(inputs)), dim=self.axis + 1)

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower = self.forward(weights, *(box.lower for box in inputs))
        return Interval(lower, self.forward(weights, *(box.upper for box in inputs)))

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        shapes = list(self.input_shapes)
        handles = self.constants or (None,) * len(shapes)
        sizes = [
            handle.shape[self.axis + 1] if handle is not None else shapes.pop(0)[self.axis]
            for handle in handles
        ]
        below: list[Tensor] = []
        biases: list[Tensor | None] = []
        for handle, part in zip(handles, coeffs.split(sizes, dim=self.axis + 2), strict=True):
            if handle is None:
                below.append(part)
            else:
                biases.append((part * weights.gather(handle)).flatten(2).sum(-1))
        return tuple(below), sum_bias(biases)

    def _parts(self, weights: WeightSource, inputs: list[Tensor]) -> list[Tensor]:
        """All operands in order; constants get the batch of the inputs."""
        if not self.constants:
            return inputs
        batch = inputs[0].shape[0]
        return [
            inputs.pop(0)
            if handle is None
            else weights.gather(handle).expand(batch, *handle.shape[1:])
            for handle in self.constants
        ]


def pad_value(fill: Any) -> float:
    """The constant that ONNX Pad names; PyTorch's exporter writes an empty tensor for none."""
    return 0.0 if isinstance(fill, Tensor) and fill.numel() == 0 else float(fill)


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
