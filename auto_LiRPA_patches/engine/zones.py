"""Where a network can be split by neuron: from Linear layers over elementwise operators to others.

A zone is a set of nodes that are elementwise functions of each other, together with the Linear
layers that feed it. All its nodes have the same neurons, and no neuron of one depends on another
neuron of the next. Each rank holds some of them; the feeding layers are split by output neuron
(columns), the layers that read the zone by input neuron (rows). A layer is one or the other, so the
neurons between a row layer and the next column layer are on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import Operator, Shape, num_elements
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Reshape

# A layer without a partner costs a message of A's size per pass; below so many weights it is not
# worth one.
_WORTH_WEIGHTS = 1 << 16


@dataclass(frozen=True)
class Zones:
    """What is split over the ranks of a tensor-parallel group.

    Attributes:
        nodes: nodes of which a rank holds some neurons, with the number of all ranks'.
        columns: Linear layers split by output neuron; they are among `nodes`.
        rows: Linear layers split by input neuron; their values are on every rank.
        alone: those of `rows` whose input is on every rank.
    """

    nodes: dict[int, int]
    columns: frozenset[int]
    rows: frozenset[int]
    alone: frozenset[int]


def find_zones(graph: Graph, ranks: int) -> Zones:
    """The zones of a network for so many ranks; with one rank there are none.

    Zones are taken from the input upwards. One that is read by Linear layers is split, one that is
    not only where its own layers are large; so is a large layer that is left over. The network's
    output is always on every rank.
    """
    nodes: dict[int, int] = {}
    columns: set[int] = set()
    rows: set[int] = set()
    readers = _readers(graph)
    for zone in _candidates(graph) if ranks > 1 else ():
        width = num_elements(graph.nodes[zone[0]].shape)
        own = {index for index in zone if is_plain_linear(graph, index)}
        if own & rows or graph.output in zone or width < ranks:
            continue
        above = {reader for index in zone for reader in readers[index]} - set(zone)
        read_by = {index for index in above - columns if is_plain_linear(graph, index)}
        if not read_by and _weights(graph, own) < _WORTH_WEIGHTS:
            continue
        nodes.update(dict.fromkeys(zone, width))
        columns |= own
        rows |= read_by
    alone = {
        index
        for index in range(1, len(graph.nodes) if ranks > 1 else 0)
        if is_plain_linear(graph, index)
        and index not in columns | rows
        and graph.nodes[index].inputs[0] not in nodes
        and num_elements(graph.nodes[graph.nodes[index].inputs[0]].shape) >= ranks
        and _weights(graph, [index]) >= _WORTH_WEIGHTS
    }
    return Zones(nodes, frozenset(columns), frozenset(rows | alone), frozenset(alone))


def is_plain_linear(graph: Graph, index: int) -> bool:
    """Whether a node is a Linear layer from a vector to a vector."""
    node = graph.nodes[index]
    return type(node.operator) is Linear and (
        len(node.operator.input_shapes[0]) == len(node.shape) == 1
    )


def _candidates(graph: Graph) -> list[list[int]]:
    """Sets of nodes that could be split together, each ascending, in topological order."""
    zone_of: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    closed: set[int] = set()  # zones that something else than a Linear layer feeds
    for index, node in enumerate(graph.nodes):
        elementwise = node.operator is not None and _is_elementwise(node.operator)
        if not elementwise and not is_plain_linear(graph, index):
            continue
        zone_of[index], members[index] = index, [index]
        for source in node.inputs if elementwise else ():
            if source not in zone_of:
                closed.add(zone_of[index])
                continue
            joined, kept = zone_of[index], zone_of[source]
            if joined == kept:
                continue
            for member in members[joined]:
                zone_of[member] = kept
            members[kept] = sorted(members[kept] + members.pop(joined))
            if joined in closed:
                closed.add(kept)
    return [zone for name, zone in sorted(members.items()) if name not in closed]


def _is_elementwise(operator: Operator) -> bool:
    """Whether neuron n of the value depends on neuron n of each input alone, all being vectors."""
    shapes = (*operator.input_shapes, operator.output_shape)
    if not all(_is_vector(shape) for shape in shapes):
        return False
    if isinstance(operator, Sum):
        return len(set(shapes)) == 1
    if isinstance(operator, Activation):
        return not operator.handles
    return isinstance(operator, ScaleShift | Reshape)


def _is_vector(shape: Shape) -> bool:
    return sum(size != 1 for size in shape) <= 1


def _readers(graph: Graph) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {index: [] for index in range(len(graph.nodes))}
    for index, node in enumerate(graph.nodes):
        for source in node.inputs:
            readers[source].append(index)
    return readers


def _weights(graph: Graph, layers: Iterable[int]) -> int:
    operators = (graph.nodes[index].operator for index in layers)
    return sum(op.num_weights for op in operators if isinstance(op, Linear))
