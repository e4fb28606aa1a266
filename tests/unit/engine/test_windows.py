"""Coefficients in windows: the same bounds as on whole planes, and no neuron forgotten.

A failure of the first kind means that a window lies in the wrong place or loses a cell; the bounds
of a convolutional network would be false. Bounds are float64: they differ by the order of sums.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import schedule, window_steps
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.reach import reached
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


class Detector(nn.Module):
    """Strides, paddings, dilations, groups, shortcuts and BatchNorm; input (2, 14, 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 3, 1)
        self.inner = nn.Conv2d(3, 3, 3, padding=(1, 2), dilation=(1, 2))
        self.norm, self.pool = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 2, stride=2, groups=3)
        self.wide = nn.Conv2d(3, 4, 3, stride=(1, 2), padding=1)
        self.last = nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            for statistic in (self.norm.running_mean, self.norm.running_var, self.norm.weight):
                if statistic is not None:
                    statistic.copy_(0.5 + torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x)) - self.side(x)
        h = torch.relu(self.norm(self.inner(h)) + h)
        h = torch.tanh(self.wide(nn.functional.pad(self.pool(h), (1, 0, 0, 1))))
        return self.last(torch.relu(h - 0.1)).flatten(1)


@pytest.fixture
def detector() -> tuple[Graph, Interval]:
    torch.manual_seed(7)
    module = Detector().eval()
    return nets.graph_of(module, (2, 14, 11)), nets.boxes((2, 14, 11), 2, 0.2)


def relaxed(graph: Graph, box: Interval, options: BoundOptions) -> Relaxations:
    return schedule.crown_relaxations(graph, box, options)


def test_windows_give_the_bounds_of_whole_planes(
    detector: tuple[Graph, Interval], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, box = detector
    monkeypatch.setattr(window_steps, "_LARGEST_SHARE", 0.8)
    monkeypatch.setattr(window_steps, "_LEAST_SAVING", 0.05)
    planned = [n for n in graph.bounded if graph.is_refined(n)]
    assert sum(window_steps.window_plan(graph, node) is not None for node in planned) >= 2
    found = relaxed(graph, box, BoundOptions())
    found_in_chunks = relaxed(graph, box, BoundOptions(chunk_rows=7))
    monkeypatch.setattr(schedule, "window_plan", lambda graph, node: None)
    whole = relaxed(graph, box, BoundOptions())
    for node in graph.bounded:
        for one in (found, found_in_chunks):
            for side in ("lower", "upper"):
                ours, dense = getattr(one.bounds[node], side), getattr(whole.bounds[node], side)
                assert torch.allclose(ours, dense, rtol=1e-9, atol=1e-9), graph.nodes[node].name


def test_bounds_in_windows_contain_samples(detector: tuple[Graph, Interval]) -> None:
    graph, box = detector
    state = relaxed(graph, box, BoundOptions())
    points = nets.points_of(box, 50)
    values = {0: points.flatten(0, 1)}
    for index, node in enumerate(graph.nodes[1:], 1):
        assert node.operator is not None
        values[index] = node.operator.forward(graph.weights, *(values[s] for s in node.inputs))
    for node in graph.bounded:
        seen = values[node].unflatten(0, points.shape[:2])
        assert (seen >= state.bounds[node].lower - 1e-9).all()
        assert (seen <= state.bounds[node].upper + 1e-9).all()


def test_plans_that_save_little_are_not_made() -> None:
    torch.manual_seed(0)
    small = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU())
    graph = nets.graph_of(nn.Sequential(*small, nn.Flatten(), nn.Linear(8, 2)), (1, 4, 4))
    refined = [node for node in graph.bounded if graph.is_refined(node)]
    assert refined and all(window_steps.window_plan(graph, node) is None for node in refined)


def test_what_counts_is_what_changes_the_functional(detector: tuple[Graph, Interval]) -> None:
    graph, box = detector
    outputs = int(torch.tensor(graph.output_shape).prod())
    matrix = torch.zeros(1, outputs, dtype=graph.precision)
    matrix[0, outputs // 3] = -1.0
    masks = reached(graph, matrix)
    assert masks and any(not mask.all() for mask in masks.values())
    x = box.center[:1].requires_grad_(True)
    values: dict[int, Tensor] = {0: x}
    for index, node in enumerate(graph.nodes[1:], 1):
        assert node.operator is not None
        values[index] = node.operator.forward(graph.weights, *(values[s] for s in node.inputs))
    kept = {node: values[node] for node in masks}
    value = values[graph.output].flatten(1) @ matrix[0]
    gradients = torch.autograd.grad(value.sum(), list(kept.values()), allow_unused=True)
    for node, gradient in zip(kept, gradients, strict=True):
        if gradient is not None:
            assert masks[node][gradient.flatten() != 0].all()


def test_leaving_neurons_out_changes_no_bound_of_the_functional(
    detector: tuple[Graph, Interval],
) -> None:
    graph, box = detector
    outputs = int(torch.tensor(graph.output_shape).prod())
    matrix = torch.zeros(2, outputs, dtype=graph.precision)
    matrix[0, 5], matrix[1, 5] = 1.0, -1.0
    rows = nets.spec_rows(graph, matrix)
    every, some = BoundOptions(), BoundOptions(reached=reached(graph, matrix))
    bounds = [
        schedule.crown_bounds(relaxed(graph, box, options), rows, options)
        for options in (every, some)
    ]
    assert torch.allclose(*bounds, rtol=1e-9, atol=1e-9)


def test_a_last_layer_that_mixes_everything_asks_no_question() -> None:
    module, shape = nets.make("conv", 0)
    graph = nets.graph_of(module, shape)
    assert reached(graph, torch.eye(3, dtype=graph.precision)) == {}
