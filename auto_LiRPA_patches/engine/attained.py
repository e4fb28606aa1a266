"""Where a bound is attained: the input, and every value on the lines the backward pass took.

The bound of a functional over a box is its linear form's smallest value, taken at a corner x*. With
each activation replaced by the line that its coefficient took, a network of affine layers and
activations is a linear function that has exactly this value at x*. Carried up through it, x* gives
each activation's input z, and z is the gradient of the bound in the coefficient of that input. So
the bound's gradient in α and β costs the same products as a backward pass of autograd, with no
graph and little else kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import TakenLines
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as


def corner(coeffs: Tensor, box: Interval) -> Tensor:
    """The input at which ``coeffs [S, B, *shape]`` are smallest over the box.

    Args:
        coeffs: contiguous; the result is written over them.
    """
    # Not by `sign` or `copysign`, which take as long as several other passes on CPUs; and a fresh
    # tensor of this size takes longer than what is done to it.
    width = (box.upper - box.lower).expand_as(coeffs)
    torch.ops.aten.threshold_backward.grad_input(width, coeffs, 0.0, grad_input=coeffs)
    return torch.sub(box.upper, coeffs, out=coeffs)


def attained_values(
    graph: Graph,
    point: Tensor,
    taken: Mapping[int, TakenLines],
    visit: Callable[[int, Tensor], None],
) -> None:
    """The inputs of the activations where the bounds are attained.

    Args:
        graph: a network; relaxed nodes that are not in `taken` count with their true value.
        point: ``[S, B, *input_shape]``, of `corner`.
        taken: per activation that the backward pass met, the lines it took.
        visit: called with each activation of `taken`, from the input upwards, and the values
            ``[S, B, F]`` at its relaxed features; its lines are not needed afterwards. No gradient.
    """
    rows = point.shape[:2]
    needed, activations = _below(graph, taken), frozenset(taken)
    graph.weights.expect(graph.handles(sorted(needed)))
    order = sorted((needed | activations) - {0})
    last_use = {source: index for index in order for source in graph.nodes[index].inputs}
    values = {0: point.flatten(0, 1)}
    with torch.no_grad(), counted_as(MemoryKind.COEFFICIENTS):
        for index in order:
            node = graph.nodes[index]
            if index in activations:
                own = values[node.inputs[0]].reshape(*rows, -1)
                step = taken[index]
                if index in needed:
                    values[index] = step.value(own).view(-1, *node.shape)
                own = step.lines.features(own)
                del step
                visit(index, own)
                del own
            elif node.operator is not None:
                sources = (values[source] for source in node.inputs)
                values[index] = node.operator.forward(graph.weights, *sources)
            for source in set(node.inputs):
                if last_use[source] == index:
                    del values[source]


def _below(graph: Graph, taken: Mapping[int, TakenLines]) -> set[int]:
    """The nodes that the inputs of `taken` are computed from."""
    needed = {source for index in taken for source in graph.nodes[index].inputs}
    for index in range(max(needed, default=0), 0, -1):
        if index in needed:
            needed.update(graph.nodes[index].inputs)
    return needed
