"""Bounds propagated forwards hold everywhere, and are exact where they must be.

A failure is a bound that a point of the box exceeds: a proof that is none.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import forward
from auto_LiRPA_patches.engine.forward import (
    FunctionalForms,
    forward_relaxations,
    functional_forms,
    most_symbols,
)
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.errors import NonFiniteBoundError
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets
from tests.unit.engine.test_bounds_contain_samples import assert_nodes_within, assert_rows_below
from tests.unit.engine.test_crown_against_exact import CASES, exact_minima

PLENTY = 10_000
SLACK = 1e-9


def bounded(
    graph: Graph, box: Interval, matrix: Tensor, symbols: int = PLENTY
) -> tuple[Relaxations, FunctionalForms]:
    state, form = forward_relaxations(graph, box, symbols)
    return state, functional_forms(form, matrix, box)


@pytest.mark.parametrize("name", nets.NETS)
@pytest.mark.parametrize("symbols", [0, 5, 40, PLENTY])
def test_no_sample_leaves_the_bounds_or_the_planes(name: str, symbols: int) -> None:
    module, shape = nets.make(name, seed=50)
    graph = nets.graph_of(module, shape)
    matrix = torch.cat([nets.signed_outputs(graph), torch.randn(2, graph.output_shape[0]).double()])
    for radius in (0.05, 0.7, 4.0):
        box = nets.boxes(shape, 3, radius)
        points = nets.points_of(box, 300)
        state, forms = bounded(graph, box, matrix, symbols)
        assert_nodes_within(graph, {node: state.bounds[node] for node in graph.bounded}, points)
        assert_rows_below(graph, matrix, forms.lower, points)
        # The plane that goes through the bound at its own corner lies below the functional.
        low, high = box.lower.flatten(1), box.upper.flatten(1)
        corner = torch.where(forms.planes >= 0, low, high)  # [S, B, I]
        at_points = ((points.flatten(2).unsqueeze(1) - corner) * forms.planes).sum(-1)
        values = torch.einsum("so,pbo->psb", matrix, nets.outputs_of(graph, points))
        assert float((forms.lower + at_points - values).max()) <= SLACK


@pytest.mark.parametrize("name", CASES)
def test_no_bound_exceeds_the_exact_minimum(name: str) -> None:
    build, shape, radius = CASES[name]
    torch.manual_seed(51)
    module = build()
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 2, radius)
    matrix = nets.signed_outputs(graph)
    exact = exact_minima(module, shape, box, matrix)
    for symbols in (3, PLENTY):
        _, forms = bounded(graph, box, matrix, symbols)
        assert float((forms.lower - exact).max()) <= 1e-6


def test_errors_that_meet_again_cancel_as_long_as_they_have_symbols() -> None:
    net = nets.mlp(1, 1, 2, 1)  # max(x, 0) - max(x, 0), behind two neurons that are never off
    with torch.no_grad():
        for index, weight, bias in (
            (0, [[1.0]], [0.0]),
            (2, [[1.0], [1.0]], [5.0, 5.0]),
            (4, [[1.0, -1.0]], [0.0]),
        ):
            nets.layer(net, index).weight.copy_(torch.tensor(weight))
            nets.layer(net, index).bias.copy_(torch.tensor(bias))
    graph = nets.graph_of(net, (1,))
    ones = torch.ones(1, 1, dtype=torch.float64)
    box, matrix = Interval(-ones, ones), torch.eye(1, dtype=torch.float64)
    assert abs(float(bounded(graph, box, matrix)[1].lower)) < 1e-12
    assert float(bounded(graph, box, matrix, symbols=1)[1].lower) == pytest.approx(-0.5)


def test_forward_bounds_are_those_of_crown_with_the_chords_slope() -> None:
    """Both relax each neuron by the same parallelogram, once upwards and once downwards."""
    torch.manual_seed(53)
    graph = nets.graph_of(nets.mlp(3, 8, 3), (3,), lower_slope="same-slope")
    box = nets.boxes((3,), 4, 1.0)
    matrix = torch.randn(5, 3).double()
    _, forms = bounded(graph, box, matrix)
    _, lower = nets.crown(graph, box, matrix)
    torch.testing.assert_close(forms.lower, lower, rtol=1e-9, atol=1e-9)


def test_one_box_has_the_same_bounds_alone_and_among_others() -> None:
    module, shape = nets.make("residual", seed=54)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 4, 0.6)
    matrix = nets.signed_outputs(graph)
    _, together = bounded(graph, box, matrix)
    for index in range(4):
        _, alone = bounded(graph, box.select(torch.tensor([index])), matrix)
        torch.testing.assert_close(alone.lower[:, 0], together.lower[:, index])


def test_symbols_fit_the_memory_allowed() -> None:
    graph = nets.graph_of(nets.mlp(3, 40, 2), (3,))
    options = BoundOptions(memory_bytes=24 * 40 * 7 * 11)
    assert most_symbols(graph, 7, options) == 11
    assert most_symbols(graph, 7, BoundOptions()) == forward._MOST_NUMBERS // 280


def test_a_bound_that_overflows_is_refused() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        for index in (0, 2):
            nets.layer(net, index).weight.fill_(1e30)
    graph = nets.graph_of(net, (1,), precision=torch.float32)
    ones = torch.ones(1, 1)
    with pytest.raises(NonFiniteBoundError):
        forward_relaxations(graph, Interval(-ones, ones), PLENTY)


def test_a_neuron_without_width_takes_no_error_from_another() -> None:
    """One of two neurons is a point, where rounding may put its lower line above the upper one."""
    for seed in range(60):
        torch.manual_seed(seed)
        net = nets.mlp(2, 2, 1, activation=nn.Sigmoid)
        with torch.no_grad():
            nets.layer(net, 0).weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        graph = nets.graph_of(net, (2,))
        center, radius = torch.randn(1, 2).double(), torch.tensor([[1.0, 0.0]]).double()
        box, matrix = Interval(center - radius, center + radius), nets.signed_outputs(graph)
        _, forms = bounded(graph, box, matrix)
        assert_rows_below(graph, matrix, forms.lower, nets.points_of(box, 200))


@pytest.mark.parametrize("units", range(1, 10))
def test_no_plane_is_too_steep_over_a_few_units(units: int) -> None:
    """The centre of so narrow a box is rounded: a symbol stands for more than half the width."""
    net = nets.mlp(1, 1)
    with torch.no_grad():
        nets.layer(net, 0).weight.fill_(1.0)
    graph = nets.graph_of(net, (1,))
    for start in (1.0, 1.0 + torch.finfo(torch.float64).eps):
        low = torch.tensor([[start]], dtype=torch.float64)
        box = Interval(low, low + units * torch.finfo(torch.float64).eps)
        _, forms = bounded(graph, box, torch.eye(1, dtype=torch.float64))
        assert 0 < float(forms.planes) <= 1


def test_an_error_that_is_not_a_number_takes_no_symbol_from_another() -> None:
    error = torch.tensor([[0.5, torch.nan, 0.0]])
    new, rest = forward._new_symbols(error, PLENTY)
    assert new is not None and rest is None
    assert new.shape[0] == 2 and bool((new == 0.5).any()) and bool(new.isnan().any())
