"""Random networks and boxes: no value a network takes lies outside its bounds.

A failure means that a property could be called proven while a counterexample exists.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets

SLACK = 1e-9
"""Rounding of a few hundred float64 operations on values of order one to ten."""


def values_of_nodes(graph: Graph, points: Tensor) -> dict[int, Tensor]:
    """``[P * B, *shape]`` of every node, operator by operator."""
    values = {0: points.flatten(0, 1)}
    for index, node in enumerate(graph.nodes):
        if node.operator is not None:
            inputs = (values[source] for source in node.inputs)
            values[index] = node.operator.forward(graph.weights, *inputs)
    return values


def assert_nodes_within(
    graph: Graph, bounds: dict[int, Interval], points: Tensor, slack: float = SLACK
) -> None:
    values = values_of_nodes(graph, points)
    for index, interval in bounds.items():
        value = values[index].unflatten(0, points.shape[:2])
        name = graph.nodes[index].name
        assert bool((value >= interval.lower - slack).all()), f"{name}: below its lower bound"
        assert bool((value <= interval.upper + slack).all()), f"{name}: above its upper bound"


def assert_rows_below(graph: Graph, matrix: Tensor, lower: Tensor, points: Tensor) -> None:
    values = torch.einsum("so,pbo->psb", matrix, nets.outputs_of(graph, points))
    excess = float((lower - values.amin(0)).max())
    assert excess <= SLACK, f"a lower bound exceeds a value that is taken, by {excess:.3g}"


@pytest.mark.parametrize("name", nets.NETS)
def test_the_graph_computes_the_module(name: str) -> None:
    module, shape = nets.make(name, seed=30)
    graph = nets.graph_of(module, shape)
    x = torch.randn(5, *shape, dtype=torch.float64, requires_grad=True)
    own, expected = graph.forward(x), module.double()(x)
    torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(own)
    own_gradient = torch.autograd.grad(own, x, direction)
    torch.testing.assert_close(own_gradient, torch.autograd.grad(expected, x, direction))


@pytest.mark.parametrize("name", nets.NETS)
@pytest.mark.parametrize(("batch", "radius"), [(3, 0.05), (1, 0.7), (3, 0.7), (2, 5.0)])
def test_crown_and_alpha_crown_contain_all_samples(name: str, batch: int, radius: float) -> None:
    module, shape = nets.make(name, seed=31)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, batch, radius)
    matrix = torch.cat([nets.signed_outputs(graph), torch.randn(2, graph.output_shape[0]).double()])
    points = nets.points_of(box, 500)
    assert_nodes_within(graph, graph.intervals(box), points)

    state, lower = nets.crown(graph, box, matrix)
    assert lower.shape == (matrix.shape[0], batch)
    assert_nodes_within(graph, {node: state.bounds[node] for node in graph.bounded}, points)
    assert_rows_below(graph, matrix, lower, points)

    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=4))
    assert_nodes_within(graph, result.bounds, points)
    assert_rows_below(graph, matrix, result.lower, points)
    assert bool((result.lower >= lower - SLACK).all())
    for node in graph.bounded:
        assert bool((result.bounds[node].lower >= state.bounds[node].lower - SLACK).all())
        assert bool((result.bounds[node].upper <= state.bounds[node].upper + SLACK).all())


@pytest.mark.parametrize("slope", ["same-slope", "zero-lb", "one-lb"])
def test_every_choice_of_lower_slope_contains_all_samples(slope: str) -> None:
    module, shape = nets.make("residual", seed=32)
    graph = nets.graph_of(module, shape, lower_slope=slope)
    box = nets.boxes(shape, 2, 1.0)
    matrix = nets.signed_outputs(graph)
    points = nets.points_of(box, 500)
    _, lower = nets.crown(graph, box, matrix)
    assert_rows_below(graph, matrix, lower, points)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=6))
    assert_rows_below(graph, matrix, result.lower, points)
    assert bool((result.lower >= lower - SLACK).all())


@pytest.mark.parametrize("name", ["mlp", "conv", "product"])
def test_crown_ibp_contains_all_samples_and_is_no_tighter_than_crown(name: str) -> None:
    module, shape = nets.make(name, seed=33)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 2, 0.3)
    matrix = nets.signed_outputs(graph)
    options = BoundOptions(intermediate="ibp")
    state, lower = nets.crown(graph, box, matrix, options)
    assert_rows_below(graph, matrix, lower, nets.points_of(box, 500))
    for node, interval in graph.intervals(box).items():
        if node in graph.bounded:
            assert torch.equal(state.bounds[node].lower, interval.lower)
            assert torch.equal(state.bounds[node].upper, interval.upper)


@st.composite
def small_nets(draw: st.DrawFn) -> tuple[nn.Module, int]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    kind = draw(st.sampled_from([nn.ReLU, nn.Sigmoid, nn.Tanh]))
    torch.manual_seed(draw(st.integers(0, 10_000)))
    module = nets.mlp(*sizes, activation=kind)
    scale = draw(st.sampled_from([0.1, 1.0, 4.0, 30.0]))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    return module, sizes[0]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(net=small_nets(), radius=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 100.0]))
def test_bounds_of_any_small_net_contain_all_samples(
    net: tuple[nn.Module, int], radius: float
) -> None:
    module, inputs = net
    graph = nets.graph_of(module, (inputs,))
    box = nets.boxes((inputs,), 2, radius)
    matrix = nets.signed_outputs(graph)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3))
    outputs = nets.outputs_of(graph, nets.points_of(box, 200))
    values = torch.einsum("so,pbo->psb", matrix, outputs)
    # Rounding is relative to the largest intermediate value, of which bounds are a measure.
    scale = 1 + max(float(b.upper.abs().max()) for b in graph.intervals(box).values())
    assert float((result.lower - values.amin(0)).max()) <= 1e-12 * scale
