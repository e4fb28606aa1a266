"""Operators of which auto_LiRPA knows some forms only.

The engine bounds them itself; of upstream's graph it needs their values at batch size 1, from which
shapes and constants are read. These classes give the value of every form and nothing else. They go
by upstream's names, which the engine's registry is keyed by.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.shape import pad_value


@functools.cache
def value_operators() -> dict[str, type]:
    """ONNX operator name -> class; to be called once auto_LiRPA is imported."""
    from auto_LiRPA.operators.base import Bound

    class BoundGather(Bound):
        def forward(self, value: Tensor, index: Tensor) -> Tensor:
            axis = int(self.attr.get("axis", 0))
            size = value.shape[axis]
            flat = torch.where(index < 0, index + size, index).reshape(-1)
            picked = value.index_select(axis, flat.to(value.device))
            axis = axis % value.dim()
            return picked.reshape(*value.shape[:axis], *index.shape, *value.shape[axis + 1 :])

    class BoundSlice(Bound):
        def forward(self, value: Tensor, *given: Tensor) -> Tensor:
            starts, ends, *more = ([int(v) for v in part.reshape(-1)] for part in given)
            axes = more[0] if more else range(len(starts))
            steps = more[1] if len(more) > 1 else [1] * len(starts)
            for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
                kept = range(value.shape[axis])[start:end:step]
                value = value.index_select(axis, torch.tensor(list(kept), dtype=torch.int64))
            return value

    class BoundExpand(Bound):
        def forward(self, value: Tensor, shape: Tensor) -> Tensor:
            sizes = torch.broadcast_shapes(value.shape, tuple(int(size) for size in shape))
            return value.expand(sizes)

    class BoundPad(Bound):
        def forward(self, value: Tensor, pads: Tensor, fill: Any = 0.0) -> Tensor:
            sizes = [int(pad) for pad in pads]
            half = len(sizes) // 2
            pairs = zip(sizes[:half], sizes[half:], strict=True)
            flat = [size for pair in reversed(list(pairs)) for size in pair]
            return F.pad(value, flat, value=pad_value(fill))

    class BoundConv(Bound):
        def forward(self, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            axes = weight.dim() - 2
            convolve = F.conv1d if axes == 1 else F.conv2d
            return convolve(value, weight, bias, *_geometry(self.attr, axes))

    class BoundConvTranspose(Bound):
        def forward(self, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            axes = weight.dim() - 2
            stride, padding, dilation, groups = _geometry(self.attr, axes)
            extra = self.attr.get("output_padding", [0] * axes)
            transpose = F.conv_transpose1d if axes == 1 else F.conv_transpose2d
            return transpose(value, weight, bias, stride, padding, extra, groups, dilation)

    class BoundReduceSum(Bound):
        def forward(self, value: Tensor, *axes: Tensor) -> Tensor:
            given = axes[0].tolist() if axes else self.attr.get("axes")
            return value.sum(given, keepdim=bool(self.attr.get("keepdims", 1)))

    class BoundErf(Bound):
        def forward(self, value: Tensor) -> Tensor:
            return torch.erf(value)

    class BoundFloor(Bound):
        def forward(self, value: Tensor) -> Tensor:
            return torch.floor(value)

    class BoundGreater(Bound):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left > right

    class BoundLogSoftmax(Bound):
        def forward(self, value: Tensor) -> Tensor:
            return torch.log_softmax(value, int(self.attr.get("axis", -1)))

    own = (
        BoundGather,
        BoundSlice,
        BoundExpand,
        BoundPad,
        BoundConv,
        BoundConvTranspose,
        BoundReduceSum,
        BoundErf,
        BoundFloor,
        BoundGreater,
        BoundLogSoftmax,
    )
    return {f"onnx::{kind.__name__.removeprefix('Bound')}": kind for kind in own}


def _geometry(attr: Any, axes: int) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups; padding that differs between sides is refused."""
    if axes not in (1, 2):
        raise NotImplementedError(f"{axes} spatial axes, expected 1 or 2")
    pads = list(attr.get("pads", [0] * (2 * axes)))
    if pads[:axes] != pads[axes:]:
        raise NotImplementedError(f"asymmetric padding {pads}")
    ones = [1] * axes
    return (
        list(attr.get("strides", ones)),
        pads[:axes],
        list(attr.get("dilations", ones)),
        int(attr.get("group", 1)),
    )
