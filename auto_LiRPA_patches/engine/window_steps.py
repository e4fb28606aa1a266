"""Backward steps on windows, and where they pay.

Claim: a step on windows gives the coefficients and bias that the operator's own step gives on the
dense coefficients they stand for, up to float rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph, Node
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.rows import Chunking, NeuronRows
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.convolution import BatchNorm, Conv
from auto_LiRPA_patches.operators.lines import Lines
from auto_LiRPA_patches.operators.shape import ConstantPad
from auto_LiRPA_patches.operators.windows import Extent, Extents, Windows

# A window of more than this share of its plane is carried on as the whole plane: reading slopes
# through windows costs about as much as a small convolution.
_LARGEST_SHARE = 0.5
# Windows are used where they save at least this share of all coefficients.
_LEAST_SAVING = 0.5
# A step holds old and new coefficients, and the lines of every window.
_COPIES = 6
# Floats of one node's coefficients in a chunk; larger ones leave the processor's caches.
_MOST_NUMBERS = 1 << 22


@dataclass(frozen=True)
class WindowPlan:
    """How rows go down in windows.

    Attributes:
        row_elements: coefficient elements of the node at which a row has the most.
    """

    row_elements: int

    def chunking(self, batch: int, options: BoundOptions) -> Chunking:
        """The cut of rows: what the options allow, and what stays in the processor's caches."""
        numbers = batch * self.row_elements
        rows = min(options.chunk_rows, _MOST_NUMBERS // numbers)
        if options.memory_bytes is not None:
            rows = min(rows, options.memory_bytes // (8 * _COPIES * numbers))
        return Chunking(max(1, rows))


def window_plan(graph: Graph, node: int) -> WindowPlan | None:
    """How rows at single elements of `node` go down in windows; None where that saves little."""
    if graph.neurons.split or not _is_plane(graph.nodes[node]):
        return None
    pending: dict[int, Extents | None] = {node: (Extent(), Extent())}
    sizes: list[tuple[int, int]] = []
    for index in range(node, -1, -1):
        if index not in pending:
            continue
        here, entry = pending.pop(index), graph.nodes[index]
        full = num_elements(entry.shape)
        if here is not None and (not _is_plane(entry) or _share(here, entry) > _LARGEST_SHARE):
            here = None
        sizes.append((full if here is None else round(_share(here, entry) * full), full))
        for source in entry.inputs:
            below = None if here is None else _below(entry, here)
            pending[source] = _merged(pending[source], below) if source in pending else below
    used, dense = (sum(column) for column in zip(*sizes, strict=True))
    if used > (1 - _LEAST_SAVING) * dense:
        return None
    return WindowPlan(max(own for own, _ in sizes))


@dataclass(frozen=True)
class WindowRows(NeuronRows):
    """Rows at single elements of a node whose coefficients start as windows of one cell."""

    def narrow(self, start: int, stop: int) -> WindowRows:
        """As of `NeuronRows`."""
        part = super().narrow(start, stop)
        return WindowRows(part.index, part.sign)

    def coefficients(self, graph: Graph, node: int, batch: int) -> Windows:  # type: ignore[override]
        """One-hot windows ``[S, B, C, 1, 1]`` at the node itself."""
        plane = graph.nodes[node].shape
        cells = plane[1] * plane[2]
        channel, cell = self.index // cells, self.index % cells
        coeffs = self.sign.new_zeros(self.count, plane[0]).scatter_(
            1, channel[:, None], self.sign[:, None]
        )
        starts = torch.stack([cell // plane[2], cell % plane[2]], 1)
        spread = coeffs[:, None, :, None, None].expand(-1, batch, -1, -1, -1)
        return Windows(spread, starts, (Extent(), Extent()), (plane[0], plane[1], plane[2]))

    def below(self, graph: Graph, node: int, batch: int) -> None:
        """Nothing to shorten."""
        return None


def window_step(
    graph: Graph, index: int, windows: Windows, lines: Any | None
) -> tuple[tuple[Windows, ...], Tensor | None] | None:
    """The backward step through node `index`; None where whole planes serve better.

    Args:
        windows: coefficients of the node's output.
        lines: its relaxation; on windows only where all rows share it.
    """
    entry = graph.nodes[index]
    operator = entry.operator
    extents = _below(entry, windows.extents)
    if extents is None or _share(windows.extents, entry) > _LARGEST_SHARE:
        return None
    plane = graph.nodes[entry.inputs[0]].shape
    below = replace(windows, extents=extents, plane=(plane[0], plane[1], plane[2]))
    if isinstance(operator, Sum):
        signed = (windows.coeffs if s == 1.0 else windows.coeffs * s for s in operator.signs)
        return tuple(replace(below, coeffs=coeffs) for coeffs in signed), None
    if isinstance(operator, ConstantPad):
        return (below.cropped(),), None
    if isinstance(operator, Activation):
        if not isinstance(lines, Lines) or lines.lower_slope.shape[0] != 1:
            return None
        stepped, bias = windows.lines(lines).step(windows.coeffs.flatten(2))
        return (replace(below, coeffs=stepped.view(windows.coeffs.shape)),), bias
    if isinstance(operator, Conv | BatchNorm):
        rows = operator.window_adjoint(graph.weights, windows.coeffs.flatten(0, 1))
        coeffs = rows.unflatten(0, windows.coeffs.shape[:2])
        offset = operator.offset(graph.weights)
        bias = None
        if offset is not None:
            bias = windows.coeffs.sum((3, 4)) @ offset.flatten()
        return (replace(below, coeffs=coeffs).cropped(),), bias
    return None


def _is_plane(entry: Node) -> bool:
    return len(entry.shape) == 3


def _share(extents: Extents, entry: Node) -> float:
    cells = extents[0].size * extents[1].size
    return cells / (entry.shape[1] * entry.shape[2])


def _below(entry: Node, here: Extents) -> Extents | None:
    """Where the windows of a node's inputs lie; None where its operator has no step on them."""
    operator = entry.operator
    if isinstance(operator, Conv) and len(operator.stride) == 2:
        width = operator.weight.shape[2:]
        axes = zip(here, operator.stride, operator.padding, operator.dilation, width, strict=True)
        found = [
            Extent(own.scale * s, own.offset * s - p, (own.size - 1) * s + d * (k - 1) + 1)
            for own, s, p, d, k in axes
        ]
        return found[0], found[1]
    if isinstance(operator, ConstantPad) and operator.value == 0 and operator.before[0] == 0:
        padded = zip(here, operator.before[1:], strict=True)
        moved = [replace(own, offset=own.offset - before) for own, before in padded]
        return (moved[0], moved[1]) if operator.input_shapes[0][0] == entry.shape[0] else None
    same = all(shape == entry.shape for shape in operator.input_shapes) if operator else False
    if same and isinstance(operator, Activation | BatchNorm | Sum):
        return here
    return None


def _merged(one: Extents | None, other: Extents | None) -> Extents | None:
    """Windows that two paths bring to a node."""
    if one is None or other is None:
        return None
    both = [mine.union(its) for mine, its in zip(one, other, strict=True)]
    return None if both[0] is None or both[1] is None else (both[0], both[1])
