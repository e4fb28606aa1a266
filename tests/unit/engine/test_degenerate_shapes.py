"""Point boxes, no rows, single numbers: the corners of shape and size.

A failure means an exception in place of a verdict.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


@pytest.mark.parametrize("name", nets.NETS)
def test_a_point_box_equals_a_forward_pass(name: str) -> None:
    module, shape = nets.make(name, seed=110)
    graph = nets.graph_of(module, shape)
    x = torch.randn(2, *shape, dtype=torch.float64)
    matrix = nets.signed_outputs(graph)
    value = graph.forward(x).flatten(1) @ matrix.T
    _, lower = nets.crown(graph, Interval(x, x), matrix)
    torch.testing.assert_close(lower, value.T, rtol=1e-9, atol=1e-9)
    best = nets.alpha_crown(graph, Interval(x, x), matrix, AlphaOptions(iterations=2)).lower
    torch.testing.assert_close(best, value.T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "tanh", "product"])
def test_a_box_with_some_fixed_inputs_contains_its_values(name: str) -> None:
    module, shape = nets.make(name, seed=111)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 2, 1.0)
    upper = box.upper.clone()
    upper[:, 0] = box.lower[:, 0]
    box = Interval(box.lower, upper)
    matrix = nets.signed_outputs(graph)
    values = nets.outputs_of(graph, nets.points_of(box, 500))
    lower = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3)).lower
    assert bool((lower <= torch.einsum("so,pbo->psb", matrix, values).amin(0) + 1e-9).all())


@pytest.mark.parametrize("tile", [None, 4])
@pytest.mark.parametrize("name", ["mlp", "conv", "product", "mixed"])
def test_no_rows_give_no_bounds_and_no_error(name: str, tile: int | None) -> None:
    """A rank without rows runs the same schedule on none."""
    module, shape = nets.make(name, seed=112)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 2, 0.5)
    none = torch.zeros(0, graph.output_shape[0], dtype=torch.float64)
    options = BoundOptions(tile_rows=tile)
    _, lower = nets.crown(graph, box, none, options)
    assert lower.shape == (0, 2)
    result = nets.alpha_crown(graph, box, none, AlphaOptions(iterations=2), options)
    assert result.lower.shape == (0, 2)


class ScalarProduct(nn.Module):
    """Two scalar Gathers multiplied: a value of shape [B], a single number per box."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] * x[:, 1]


class ScalarRelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x[:, 0] - x[:, 1]) * 2 - 1


class ScalarJoined(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = torch.tanh(x[:, 0]) + x[:, 1]
        return torch.cat([total.unsqueeze(1), x], dim=1)


@pytest.mark.parametrize("kind", [ScalarProduct, ScalarRelu, ScalarJoined])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_single_number_per_box_is_bounded(kind: type[nn.Module], batch: int) -> None:
    graph = nets.graph_of(kind(), (2,))
    torch.manual_seed(113)
    box = nets.boxes((2,), batch, 1.0)
    matrix = nets.signed_outputs(graph)
    points = nets.points_of(box, 2000)
    values = nets.outputs_of(graph, points)
    expected = kind()(points.flatten(0, 1)).view_as(values)
    torch.testing.assert_close(values, expected)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3))
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    assert bool((result.lower <= smallest + 1e-9).all())
    assert bool((result.lower >= smallest - 2.5).all())
