"""Coefficients that are zero outside a window of the plane they belong to.

A neuron of a convolutional layer depends on a few cells of each layer below. A backward pass from
it carries coefficients of just these cells: for the first layers of a detector with planes of
52 x 52, a fiftieth of the whole.

Claim: a `Windows` stands for the dense coefficients that `dense` gives; `plus`, `cropped` and
`gather` keep to that. Cells outside the plane hold zeros.

Shapes: S rows, B boxes, C channels, planes of H x W cells, windows of h x w; everything is local
to a rank. Convolutions slide over windows as over planes, because they are the same everywhere.

Reference: Xu et al. 2020 (arXiv 2002.12920), appendix on convolutions, for the idea; here a row
knows where it starts, and rows that start in the same place share what is read of a plane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.lines import Lines


@dataclass(frozen=True)
class Extent:
    """Where windows lie along one axis: ``scale * start + offset`` and `size` cells from there."""

    scale: int = 1
    offset: int = 0
    size: int = 1

    def union(self, other: Extent) -> Extent | None:
        """The smallest that covers both; None where they move at different speeds."""
        if self.scale != other.scale:
            return None
        first = min(self.offset, other.offset)
        end = max(self.offset + self.size, other.offset + other.size)
        return Extent(self.scale, first, end - first)


Extents = tuple[Extent, Extent]


@dataclass(frozen=True)
class Windows:
    """Coefficients of S rows at one node.

    Attributes:
        coeffs: ``[S, B, C, h, w]``, zero outside the plane.
        starts: ``[S, 2]`` int64, the cell (y, x) of the node where the row starts.
        extents: how windows lie along y and x.
        plane: (C, H, W), the node's shape.
    """

    coeffs: Tensor
    starts: Tensor
    extents: Extents
    plane: tuple[int, int, int]

    def first(self, axis: int) -> Tensor:
        """``[S]`` the first cell of each window along an axis; may lie outside the plane."""
        extent = self.extents[axis]
        return self.starts[:, axis] * extent.scale + extent.offset

    def cropped(self) -> Windows:
        """The same with zeros where a window reaches over the edge."""
        coeffs = self.coeffs
        for axis in (0, 1):
            cells = self._cells(axis)
            inside = (cells >= 0) & (cells < self.plane[1 + axis])
            if not bool(inside.all()):
                shape = (cells.shape[0], 1, 1, *((-1, 1) if axis == 0 else (1, -1)))
                coeffs = coeffs * inside.to(coeffs.dtype).view(shape)
        return replace(self, coeffs=coeffs)

    def dense(self) -> Tensor:
        """``[S, B, C, H, W]``."""
        count, batch, channels = self.coeffs.shape[:3]
        high, wide = self.plane[1:]
        rows, columns = self._cells(0).clamp(0, high - 1), self._cells(1).clamp(0, wide - 1)
        # Cells outside add their zeros to some cell at the edge.
        places = (rows[:, :, None] * wide + columns[:, None, :]).flatten(1)[:, None, None]
        flat = self.coeffs.new_zeros(count, batch, channels, high * wide)
        flat.scatter_add_(3, places.expand(-1, batch, channels, -1), self.coeffs.flatten(3))
        return flat.view(count, batch, *self.plane)

    def plus(self, other: Windows) -> Windows | None:
        """The sum; None where there is no common window."""
        both = [mine.union(its) for mine, its in zip(self.extents, other.extents, strict=True)]
        if both[0] is None or both[1] is None:
            return None
        extents = both[0], both[1]
        total = self._widened(extents).coeffs + other._widened(extents).coeffs
        return replace(self, coeffs=total, extents=extents)

    def lines(self, lines: Lines) -> Lines:
        """Lines of all rows ``[1, B, N]`` as each window sees them: ``[S, B, C * h * w]``."""
        lower = lines.lower_slope if lines.index is None else _whole(lines, lines.lower_slope)
        upper = lines.upper_slope if lines.index is None else _whole(lines, lines.upper_slope)
        intercepts = (lines.lower_intercept, lines.upper_intercept)
        size = lower.shape[-1]
        below, above = (
            None if values is None else _spread(values, lines.index, size) for values in intercepts
        )
        given = [values for values in (lower, upper, below, above) if values is not None]
        seen = iter(self.gather(torch.cat(given)).flatten(3).unbind(0))
        return Lines(
            index=None,
            pass_through=None,
            lower_slope=next(seen),
            upper_slope=next(seen),
            lower_intercept=None if below is None else next(seen),
            upper_intercept=None if above is None else next(seen),
        )

    def gather(self, planes: Tensor) -> Tensor:
        """``planes [K, B, C * H * W]`` seen through each window: ``[K, S, B, C, h, w]``.

        Zero outside the plane.
        """
        count, batch = planes.shape[:2]
        high, wide = self.plane[1:]
        (h, w) = (extent.size for extent in self.extents)
        padded = F.pad(planes.view(count, batch, *self.plane), (w, w, h, h))
        # Rows that start in the same place see the same.
        key, inverse = torch.unique(
            self.starts[:, 0] * (1 << 31) + self.starts[:, 1], return_inverse=True
        )
        places = replace(self, starts=torch.stack([key >> 31, key & ((1 << 31) - 1)], 1))
        rows = places.first(0).clamp(-h, high) + h
        columns = places.first(1).clamp(-w, wide) + w
        seen = padded.unfold(3, h, 1).unfold(4, w, 1)[:, :, :, rows, columns]
        seen = seen.permute(0, 3, 1, 2, 4, 5).contiguous()  # [K, P, B, C, h, w]
        return seen.index_select(1, inverse)

    def _cells(self, axis: int) -> Tensor:
        """``[S, h or w]`` the cells of each window along an axis."""
        steps = torch.arange(self.extents[axis].size, device=self.starts.device)
        return self.first(axis)[:, None] + steps

    def _widened(self, extents: Extents) -> Windows:
        """The same in larger windows around its own."""
        pads = []
        for own, wanted in zip(reversed(self.extents), reversed(extents), strict=True):
            before = own.offset - wanted.offset
            pads += [before, wanted.size - own.size - before]
        coeffs = F.pad(self.coeffs, pads) if any(pads) else self.coeffs
        return replace(self, coeffs=coeffs, extents=extents)


def _whole(lines: Lines, slopes: Tensor) -> Tensor:
    """Slopes ``[1, B, F]`` of relaxed features with the exact ones of the rest: ``[1, B, N]``."""
    if lines.index is None or lines.pass_through is None:
        raise ValueError("lines over some features need the slope of the others")
    return lines.pass_through.unsqueeze(0).index_copy(2, lines.index, slopes)


def _spread(values: Tensor, index: Tensor | None, size: int) -> Tensor:
    """``[1, B, F]`` in its places of ``[1, B, N]``, zero elsewhere."""
    if index is None:
        return values
    return values.new_zeros(*values.shape[:2], size).index_copy(2, index, values)
