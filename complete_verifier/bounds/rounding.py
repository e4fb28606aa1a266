"""How much of a bound may be rounding.

Bounds are computed in floating point, and so are the outputs a user will see. A margin within that
noise proves nothing: one more rounding, and the network violates the property when it is run. So a
proof must clear an allowance that scales with the numbers that were added up. It is an estimate
(eight units in the last place of their sum), not a bound of the worst case, which grows with every
layer beyond use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.backward import input_form
from auto_LiRPA_patches.engine.chunks import chunking
from auto_LiRPA_patches.engine.options import BoundOptions, never
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import Rows, SpecRows
from auto_LiRPA_patches.engine.schedule import by_chunks
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bounds.output_rows import OutputRows

_UNITS = 8


def allowance_of(size: Tensor) -> Tensor:
    """The allowance, float64, for numbers that added up to ``size`` in absolute value."""
    return _UNITS * torch.finfo(size.dtype).eps * size.double()


def coefficient_rounding(rows: OutputRows, matrix: Tensor, output: Interval) -> np.ndarray:
    """How far rounding the functionals' coefficients can move each of them, ``[S, B]`` float64.

    Args:
        rows: the exact functionals.
        matrix: ``[S, O]``, the same as bounds use them.
        output: bounds of the outputs, ``[B, *output_shape]``.
    """
    largest = torch.maximum(output.lower.abs(), output.upper.abs()).flatten(1).double().cpu()
    return np.stack([rows.rounding(matrix, own) for own in largest.numpy()], axis=1)


def rounding_allowance(
    state: Relaxations, matrix: Tensor, lower: Tensor, options: BoundOptions
) -> np.ndarray:
    """What a lower bound must exceed its threshold by, per functional.

    Args:
        state: the region's relaxations.
        matrix: ``[S, O]`` functionals of the output.
        lower: ``[S, 1]`` their bounds.
        options: chunks, and the ranks that share the rows. The clock is not asked.

    Returns:
        ``[S]`` float64, >= 0: eight units in the last place of
        ``|bound| + |functional| . |outputs at the box's centre| + |coefficients| . |inputs|``.
        A NaN stays one, and excludes nothing.
    """
    graph, box = state.graph, state.box
    rows = SpecRows(matrix.view(-1, *graph.output_shape))
    largest = torch.maximum(box.lower.abs(), box.upper.abs())[0].flatten()

    def of_inputs(chunk: Rows) -> Tensor:
        coeffs, _ = input_form(graph, box, graph.output, chunk, lambda i: state.lines(i, None))
        if coeffs is None:
            return largest.new_zeros(chunk.count)
        # Not a product: its bits depend on how many rows there are.
        return (coeffs[:, 0].flatten(1).abs() * largest).sum(dim=1)

    untimed = replace(options, out_of_time=never)
    cut = chunking(graph, graph.output, box.lower.shape[0], options)
    with torch.no_grad():
        size = lower[:, 0].abs()
        size = size + matrix.abs() @ graph.forward(box.center)[0].flatten().abs()
        size = size + by_chunks("the rounding allowance", rows, of_inputs, cut, untimed)
    return allowance_of(graph.neurons.agreed(size)).cpu().numpy()
