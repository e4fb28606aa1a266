"""Convolutions in one and two dimensions (ONNX Conv, ConvTranspose, BatchNormalization)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.absolute import block_size
from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource

# Up to so many channels, phases included, oneDNN's strided adjoint is slower than a convolution of
# stride 1 (measured on one AVX2 thread, 128 rows: 8 -> 3 channels, 4 x 4, stride 2: 13.1 ms against
# 4.0; 16 -> 3, 3 x 3: 8.9 against 6.4; 16 -> 8, 4 x 4: 2.8 against 2.0; 32 -> 16, 3 x 3: 4.2
# against 8.6).
_FEW_CHANNELS = 32


@dataclass(frozen=True)
class _Phases:
    """One axis of a strided adjoint.

    Attributes:
        taps: offsets of output cells that any phase uses.
        widths: zeros before and after the kernel that make it ``taps * stride`` wide.
        margin: zero cells on both sides of the output.
        skipped: cells of the convolution before the first wanted one.
        cells: wanted cells per phase.
    """

    taps: int
    widths: tuple[int, int]
    margin: int
    skipped: int
    cells: int


@dataclass(frozen=True)
class _Sliding(AffineOperator):
    """A kernel that slides over one or two spatial axes: a convolution, or the adjoint of one.

    Attributes:
        weight: as in ONNX; see the subclasses.
        bias: one per output channel.
        stride, padding, dilation: per spatial axis.
        groups: channels are divided into so many parts that do not mix.
    """

    weight: WeightHandle
    bias: WeightHandle | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def offset(self, weights: WeightSource) -> Tensor | None:
        if self.bias is None:
            return None
        return weights.gather(self.bias).view(-1, *(1 for _ in self.stride))

    def _by_blocks(self, kernel: Tensor, outputs: int, slide: Callable[[Tensor], Tensor]) -> Tensor:
        """``|L| rows``, some output channels at a time; `outputs` is the kernel's axis of those."""
        channels = kernel.shape[outputs]
        size = channels
        if self.groups == 1:
            size = block_size(channels, kernel.numel() // max(1, channels))
        parts = [slide(part.abs()) for part in kernel.split(size, outputs)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _slide(self, rows: Tensor, kernel: Tensor) -> Tensor:
        convolve = F.conv1d if len(self.stride) == 1 else F.conv2d
        return convolve(rows, kernel, None, self.stride, self.padding, self.dilation, self.groups)

    def _slide_back(self, rows: Tensor, kernel: Tensor, output_padding: Sequence[int]) -> Tensor:
        transpose = F.conv_transpose1d if len(self.stride) == 1 else F.conv_transpose2d
        return transpose(
            rows,
            kernel,
            None,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
        )


@dataclass(frozen=True)
class Conv(_Sliding):
    """``y = conv(x, W) + b`` with symmetric zero padding.

    Shapes: input ``[C, *space]``, output ``[K, *space']``, W ``[K, C / groups, *kernel]``; one or
    two spatial axes.
    """

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        kernel = weights.gather(self.weight)
        if not absolute:
            return self._slide(rows, kernel)
        return self._by_blocks(kernel, 0, lambda part: self._slide(rows, part))

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        kernel = weights.gather(self.weight)
        if self._cuts_patches(kernel):
            return self._patches_back(kernel, rows)
        if self._strided and kernel[0, 0].numel() == 1 and not any(self.padding):
            return self._spread(kernel, rows)
        if self._strided and kernel.shape[1] * prod(self.stride) <= _FEW_CHANNELS:
            return self._by_phases(kernel, rows)
        return self._slide_back(rows, kernel, self._output_padding(kernel))

    def window_adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        """The adjoint on windows ``[R, K, h, w]`` of the output, of all cells they reach.

        Returns:
            ``[R, C, (h - 1) * stride + dilation * (kernel - 1) + 1, ...]``: cells in the padding
            included.
        """
        kernel = weights.gather(self.weight)
        if rows.shape[2:] == (1, 1) and self.groups == 1 and set(self.dilation) == {1}:
            return (rows.flatten(1) @ kernel.flatten(1)).view(-1, *kernel.shape[1:])
        return F.conv_transpose2d(rows, kernel, None, self.stride, 0, 0, self.groups, self.dilation)

    def _cuts_patches(self, kernel: Tensor) -> bool:
        """Whether every input cell is read once: patches side by side, as in transformers."""
        return (
            self.stride == tuple(kernel.shape[2:])
            and len(self.stride) == 2
            and self.groups == 1
            and not any(self.padding)
            and set(self.dilation) == {1}
            and all(
                cells == patches * size
                for cells, patches, size in zip(
                    self.input_shapes[0][1:], self.output_shape[1:], self.stride, strict=True
                )
            )
        )

    def _patches_back(self, kernel: Tensor, rows: Tensor) -> Tensor:
        """The adjoint as one matrix product; a transposed convolution takes eight times as long."""
        count, (high, wide) = rows.shape[0], self.output_shape[1:]
        flat = rows.permute(0, 2, 3, 1).reshape(-1, rows.shape[1]) @ kernel.flatten(1)
        patches = flat.view(count, high, wide, *kernel.shape[1:])
        return patches.permute(0, 3, 1, 4, 2, 5).reshape(count, *self.input_shapes[0])

    @property
    def _strided(self) -> bool:
        """Two spatial axes, a stride, and nothing else out of the ordinary."""
        plain = self.groups == 1 and len(self.stride) == 2 and set(self.dilation) == {1}
        return plain and max(self.stride) > 1

    def _spread(self, kernel: Tensor, rows: Tensor) -> Tensor:
        """The adjoint of a 1 x 1 kernel: a product per position, spread over the input's grid."""
        below = rows.new_zeros(rows.shape[0], *self.input_shapes[0])
        grid = below[:, :, :: self.stride[0], :: self.stride[1]]
        grid = grid[:, :, : rows.shape[2], : rows.shape[3]]
        product = torch.matmul(kernel[:, :, 0, 0].T, rows.flatten(2))
        grid.copy_(product.view(grid.shape))
        return below

    def _by_phases(self, kernel: Tensor, rows: Tensor) -> Tensor:
        """The adjoint as one convolution of stride 1 with an output channel per phase.

        Input cell ``o = s m + r`` (s the stride, r its phase) receives ``W[t]`` from output cell
        ``i = m + d`` where ``t = r + p - s d`` lies in the kernel. So for each phase the kernel's
        taps ``t`` with the same remainder form a convolution of offsets d; the phases' kernels,
        zero where a phase lacks an offset, are computed together and interleaved.
        """
        axes = [self._phases(axis, kernel.shape[2 + axis]) for axis in (0, 1)]
        (first, top), (left, right) = axes[0].widths, axes[1].widths
        padded = F.pad(kernel, (left, right, first, top))
        taps, strides = [axis.taps for axis in axes], self.stride
        split = padded.view(*kernel.shape[:2], taps[0], strides[0], taps[1], strides[1])
        phases = split.flip(2, 4).permute(1, 3, 5, 0, 2, 4).flatten(0, 2)
        wide = F.conv2d(rows, phases, None, 1, [axis.margin for axis in axes])
        cells = [slice(axis.skipped, axis.skipped + axis.cells) for axis in axes]
        kept = wide[:, :, cells[0], cells[1]].unflatten(1, (-1, *strides))
        woven = kept.permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3)
        size = self.input_shapes[0]
        if woven.shape[2:] == size[1:]:
            return woven
        return woven[:, :, : size[1], : size[2]].contiguous()

    def _phases(self, axis: int, width: int) -> _Phases:
        """How the phases of one axis lie, for a kernel of `width` taps."""
        stride, padding = self.stride[axis], self.padding[axis]
        last = (stride - 1 + padding) // stride
        first = -((width - 1 - padding) // stride)
        taps = last - first + 1
        before = stride * last - padding
        cells = -(-self.input_shapes[0][1 + axis] // stride)
        margin = max(0, -first, cells + last - self.output_shape[1 + axis])
        return _Phases(
            taps=taps,
            widths=(before, stride * taps - width - before),
            margin=margin,
            skipped=margin + first,
            cells=cells,
        )

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
class ConvTranspose(_Sliding):
    """The adjoint of a convolution as a layer (ONNX ConvTranspose), with symmetric cropping.

    Shapes: input ``[K, *space]``, output ``[C, *space]``, W ``[K, C / groups, *kernel]``; one or
    two spatial axes.
    """

    output_padding: tuple[int, ...]

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        kernel = weights.gather(self.weight)
        if not absolute:
            return self._slide_back(rows, kernel, self.output_padding)
        return self._by_blocks(
            kernel, 1, lambda part: self._slide_back(rows, part, self.output_padding)
        )

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        below = self._slide(rows, weights.gather(self.weight))
        # Output padding lets the convolution fit once more where no input cell is.
        for axis, size in enumerate(self.input_shapes[0][1:]):
            below = below.narrow(axis + 2, 0, size)
        return below


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

    def window_adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        """The adjoint on windows ``[R, C, h, w]``: a channel's scale is the same everywhere."""
        return self.adjoint(weights, rows)

    def offset(self, weights: WeightSource) -> Tensor | None:
        mean = self._per_channel(weights.gather(self.mean))
        return self._per_channel(weights.gather(self.beta)) - mean * self._scale(weights)

    def _scale(self, weights: WeightSource) -> Tensor:
        deviation = torch.sqrt(weights.gather(self.variance) + self.epsilon)
        return self._per_channel(weights.gather(self.gamma) / deviation)

    def _per_channel(self, vector: Tensor) -> Tensor:
        return vector.view(-1, *(1 for _ in self.output_shape[1:]))
