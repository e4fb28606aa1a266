"""Which elements of a network a functional of its output depends on at all.

A detector's cell sees a part of the image and of every layer; neurons outside that part need no
tight bounds. Nothing here carries a claim: neurons left out keep their interval bounds, which are
sound, and whatever depends on them is bounded as before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.convolution import BatchNorm, Conv
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Movement

# Through these an element goes on to a few of the next layer; anything else ends the question.
_LOCAL = (Activation, BatchNorm, Conv, Movement, ScaleShift)


def reached(graph: Graph, matrix: Tensor) -> dict[int, Tensor]:
    """Elements of bounded nodes that ``matrix @ output`` depends on.

    Args:
        graph: the network.
        matrix: ``[S, O]``, replicated.

    Returns:
        Per node a mask ``[N]`` bool, replicated; nodes of which every element may count are left
        out. Empty, without a pass, where the last layers mix all elements.
    """
    if graph.neurons.split or not _ends_locally(graph):
        return {}
    graph.weights.expect(graph.handles_below(graph.output))
    used = (matrix != 0).any(0).to(graph.precision)
    pending = {graph.output: used.view(1, 1, *graph.output_shape)}
    found: dict[int, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for index in range(graph.output, 0, -1):
            operator = graph.nodes[index].operator
            if index not in pending or operator is None:
                continue
            mask = pending.pop(index) != 0
            if index in graph.bounded and not bool(mask.all()):
                found[index] = mask.flatten()
            if operator.needs_bounds:
                parts = _through_relaxed(graph, index, mask)
            else:
                # Random numbers do not cancel: a zero means that no path leads here.
                random = 0.5 + torch.rand(mask.shape, generator=generator, dtype=graph.precision)
                coeffs = mask * random.to(mask.device)
                parts, _ = operator.backward(graph.weights, coeffs, None)
            for source, part in zip(graph.nodes[index].inputs, parts, strict=True):
                above = pending.get(source)
                hit = part != 0 if above is None else (part != 0) | (above != 0)
                pending[source] = hit.to(graph.precision)
    return found


def _through_relaxed(graph: Graph, index: int, mask: Tensor) -> tuple[Tensor, ...]:
    """What a relaxed node's inputs are reached in: its own elements, or all of them."""
    if isinstance(graph.nodes[index].operator, Activation):
        return (mask,)
    shapes = [graph.nodes[source].shape for source in graph.nodes[index].inputs]
    return tuple(mask.new_ones(1, 1, *shape) for shape in shapes)


def _ends_locally(graph: Graph) -> bool:
    """Whether the way down from the output meets a convolution before it meets a mixing layer."""
    index = graph.output
    while index > 0:
        node = graph.nodes[index]
        if not isinstance(node.operator, _LOCAL):
            return False
        if isinstance(node.operator, Conv):
            return True
        index = node.inputs[0]
    return False
