"""Leave out neurons that are inactive over the whole box: the network without them is the same.

A ReLU whose input never exceeds zero is zero, so its row of the layer below and its columns of the
layers above change nothing. Products shrink with the share of such neurons on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph, Node
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.sharding.added_weights import AddedWeights


@dataclass(frozen=True)
class NarrowGraph:
    """A network equal to another one over a box.

    Attributes:
        graph: nodes as in the other, some with fewer neurons.
        kept: per narrowed node (layers and their ReLUs), the neurons left, ``[F]`` ascending.
    """

    graph: Graph
    kept: Mapping[int, Tensor]


def without_inactive(graph: Graph, bounds: Mapping[int, Interval]) -> NarrowGraph:
    """The network without neurons that `bounds` prove inactive.

    Only layers between Linear operators that no ranks share by neuron are narrowed. Where
    parameters are sharded, so are those of the narrowed layers; all ranks call this alike.

    Args:
        graph: the network.
        bounds: of every bounded node, ``[B, *shape]``; a neuron has to be inactive in all boxes.

    Claim: for every x within the boxes both graphs have the same output, up to the order in which
    a product adds up.
    """
    kept: dict[int, Tensor] = {}
    for layer, activation in _between_linear(graph):
        inactive = (bounds[layer].upper.flatten(1) <= 0).all(0)
        inactive[0] &= not bool(inactive.all())  # a layer keeps one neuron at least
        if bool(inactive.any()):
            kept[layer] = kept[activation] = (~inactive).nonzero().squeeze(1)
    if not kept:
        return NarrowGraph(graph, {})
    weights = AddedWeights(graph.weights)
    nodes = tuple(_narrowed(graph, index, kept, weights) for index in range(len(graph.nodes)))
    return NarrowGraph(replace(graph, nodes=nodes, weights=weights), kept)


def _between_linear(graph: Graph) -> list[tuple[int, int]]:
    """Linear layers read by one ReLU only, which is read by Linear layers only."""
    readers: dict[int, list[int]] = {index: [] for index in range(len(graph.nodes))}
    for index, node in enumerate(graph.nodes):
        for source in node.inputs:
            readers[source].append(index)
    found = []
    for index, node in enumerate(graph.nodes):
        if not isinstance(node.operator, Relu) or index == graph.output:
            continue
        (layer,) = node.inputs
        around = [layer, *readers[index]]
        if readers[layer] == [index] and all(_is_plain_linear(graph.nodes[i]) for i in around):
            found.append((layer, index))
    return found


def _is_plain_linear(node: Node) -> bool:
    # One that ranks share stays as wide as they have agreed.
    return type(node.operator) is Linear and (
        len(node.operator.input_shapes[0]) == len(node.shape) == 1
    )


def _narrowed(graph: Graph, index: int, kept: Mapping[int, Tensor], weights: AddedWeights) -> Node:
    node = graph.nodes[index]
    own = kept.get(index)
    below = kept.get(node.inputs[0]) if len(node.inputs) == 1 else None
    if own is None and below is None:
        return node
    shape = node.shape if own is None else (len(own),)
    if isinstance(node.operator, Relu):
        relu = replace(node.operator, input_shapes=(shape,), output_shape=shape)
        return replace(node, operator=relu, shape=shape)
    if not isinstance(node.operator, Linear):
        raise TypeError(f"{node.name}: only Linear layers and ReLU can be narrowed")
    layer = node.operator.at(graph.weights, weights, own, below)
    return replace(node, operator=layer, shape=shape)
