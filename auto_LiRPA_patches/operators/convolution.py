"""Convolutions in one and two dimensions (ONNX Conv)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True)
class Conv(AffineOperator):
    """``y = conv(x, W) + b`` with symmetric zero padding.

    Shapes: input ``[C, *space]``, output ``[K, *space']``, W ``[K, C / groups, *kernel]``; one or
    two spatial axes.
    """

    weight: WeightHandle
    bias: WeightHandle | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        kernel = weights.gather(self.weight)
        if absolute:
            kernel = kernel.abs()
        convolve = F.conv1d if len(self.stride) == 1 else F.conv2d
        return convolve(rows, kernel, None, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        kernel = weights.gather(self.weight)
        transpose = F.conv_transpose1d if len(self.stride) == 1 else F.conv_transpose2d
        return transpose(
            rows,
            kernel,
            None,
            self.stride,
            self.padding,
            self._output_padding(kernel),
            self.groups,
            self.dilation,
        )

    def offset(self, weights: WeightSource) -> Tensor | None:
        if self.bias is None:
            return None
        return weights.gather(self.bias).view(-1, *(1 for _ in self.stride))

    def _output_padding(self, kernel: Tensor) -> list[int]:
        """Input cells at the far end that no kernel position reaches completely."""
        padding = []
        for axis, stride in enumerate(self.stride):
            reached = (
                (self.output_shape[1 + axis] - 1) * stride
                - 2 * self.padding[axis]
                + self.dilation[axis] * (kernel.shape[2 + axis] - 1)
                + 1
            )
            padding.append(self.input_shapes[0][1 + axis] - reached)
        return padding


@dataclass(frozen=True)
class BatchNorm(AffineOperator):
    """BatchNormalization in inference: ``y = x * scale + shift`` per channel (first axis).

    ``scale = gamma / sqrt(var + eps)``, ``shift = beta - mean * scale``, computed at each use so
    that only the four stored vectors are sharded.
    """

    gamma: WeightHandle
    beta: WeightHandle
    mean: WeightHandle
    variance: WeightHandle
    epsilon: float

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        scale = self._scale(weights)
        return rows * (scale.abs() if absolute else scale)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return rows * self._scale(weights)

    def offset(self, weights: WeightSource) -> Tensor | None:
        mean = self._per_channel(weights.gather(self.mean))
        return self._per_channel(weights.gather(self.beta)) - mean * self._scale(weights)

    def _scale(self, weights: WeightSource) -> Tensor:
        deviation = torch.sqrt(weights.gather(self.variance) + self.epsilon)
        return self._per_channel(weights.gather(self.gamma) / deviation)

    def _per_channel(self, vector: Tensor) -> Tensor:
        return vector.view(-1, *(1 for _ in self.output_shape[1:]))
