"""A network without its inactive neurons computes the same outputs over the box.

A failure means that bounds are computed of another network.
"""

from __future__ import annotations

import torch
from torch import nn

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.inactive import without_inactive
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.schedule import crown_relaxations
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.added_weights import AddedWeights
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.engine import nets


def _half_inactive(*sizes: int) -> nn.Sequential:
    """Random layers whose biases switch neurons off and others on."""
    module = nets.mlp(*sizes)
    with torch.no_grad():
        for index in range(0, len(module) - 1, 2):
            bias = nets.layer(module, index).bias
            bias += torch.linspace(-3, 3, len(bias))
    return module


def _box(size: int) -> Interval:
    return Interval(-torch.ones(1, size).double(), torch.ones(1, size).double())


def _bounds(graph: Graph, box: Interval) -> dict[int, Interval]:
    state = crown_relaxations(graph, box, BoundOptions())
    return {node: state.interval(node) for node in graph.bounded}


def test_outputs_are_the_same_within_the_box_only() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        graph = nets.graph_of(_half_inactive(3, 12, 10, 8, 2), (3,))
        narrow = without_inactive(graph, _bounds(graph, _box(3)))
        points = torch.rand(500, 3).double() * 2 - 1
        torch.testing.assert_close(narrow.graph.forward(points), graph.forward(points))
        # The bug to be caught would be a neuron that is active somewhere.
        assert not torch.allclose(narrow.graph.forward(9 * points), graph.forward(9 * points))
        for index in graph.relaxed:
            (layer,) = graph.nodes[index].inputs
            upper = _bounds(graph, _box(3))[layer].upper[0]
            assert narrow.kept[index].tolist() == (upper > 0).nonzero().squeeze(1).tolist()
            assert narrow.graph.nodes[index].shape == (len(narrow.kept[index]),)


def test_bounds_are_those_of_the_whole_network() -> None:
    torch.manual_seed(0)
    graph, box = nets.graph_of(_half_inactive(3, 12, 10, 2), (3,)), _box(3)
    whole = crown_relaxations(graph, box, BoundOptions())
    narrow = without_inactive(graph, _bounds(graph, box))
    part = crown_relaxations(narrow.graph, box, BoundOptions())
    for node in graph.bounded:
        kept = narrow.kept[node]
        for side in ("lower", "upper"):
            own = getattr(part.interval(node), side)
            torch.testing.assert_close(own, getattr(whole.interval(node), side)[:, kept])


def test_a_layer_without_active_neurons_keeps_one() -> None:
    module = nets.mlp(2, 4, 2)
    with torch.no_grad():
        nets.layer(module, 0).bias.fill_(-100.0)
    graph = nets.graph_of(module, (2,))
    narrow = without_inactive(graph, _bounds(graph, _box(2)))
    assert [len(kept) for kept in narrow.kept.values()] == [1, 1]
    points = torch.rand(10, 2).double()
    torch.testing.assert_close(narrow.graph.forward(points), graph.forward(points))


def test_layers_that_something_else_reads_stay_whole() -> None:
    torch.manual_seed(0)
    graph = nets.graph_of(nets.Residual(), (4,))
    never_active = {
        node: Interval(-torch.ones(1, 6).double(), -torch.ones(1, 6).double())
        for node in graph.bounded
    }
    narrow = without_inactive(graph, never_active)
    names = {graph.nodes[node].operator.__class__.__name__ for node in narrow.kept}
    assert names <= {"Linear", "Relu"}
    for node, entry in enumerate(graph.nodes):
        if entry.operator.__class__.__name__ not in ("Linear", "Relu"):
            assert narrow.graph.nodes[node] == entry


def test_nothing_changes_where_nothing_is_inactive() -> None:
    graph = nets.graph_of(nets.mlp(2, 3, 2), (2,))
    open_bounds = {
        node: Interval(-torch.ones(1, 3), torch.full((1, 3), torch.nan)) for node in graph.bounded
    }
    assert without_inactive(graph, open_bounds).graph is graph


def test_added_weights_come_from_where_they_were_registered() -> None:
    base = OneRankWeights()
    old = base.register("w", torch.tensor([1.0, 2.0]))
    added = AddedWeights(base)
    new = added.register("w", torch.tensor([3.0, 4.0, 5.0]))
    assert added.gather(old).tolist() == [1.0, 2.0]
    assert added.gather(new).tolist() == [3.0, 4.0, 5.0]
    assert added.full_bytes == added.local_bytes == 20
    assert len(base.handles) == 1 and len(added.held()) == 2
    assert added.digest != AddedWeights(base).digest
