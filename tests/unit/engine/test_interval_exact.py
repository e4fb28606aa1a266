"""`Graph.interval_exact` names only nodes whose interval image is their exact range.

A failure means that a backward pass is skipped where it would have tightened the bounds.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


class Elementwise(nn.Module):
    """Everything that keeps elements independent, then an affine map, then activations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(x.transpose(1, 2) * 2 - 1).flatten(1)
        return torch.sigmoid(torch.tanh(self.linear(h)))


class Shared(nn.Module):
    """One element used twice before an affine map: the image is no longer exact there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(torch.cat([x, x[:, :3]], dim=1)))


class Joined(nn.Module):
    """Two affine branches of one input, added: each exact, the sum not."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.left(x) + self.right(x))


class Padded(nn.Module):
    """A padded convolution of the normalised input; input (1, 3, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv((x - 0.5) / 0.25))


CASES = {
    "elementwise": (Elementwise, (2, 3)),
    "shared": (Shared, (3,)),
    "joined": (Joined, (3,)),
    "padded": (Padded, (1, 3, 2)),
    "mlp": (lambda: nets.mlp(3, 5, 4, 2), (3,)),
    "residual": (nets.Residual, (4,)),
    "mixed": (nets.Mixed, (2, 3)),
}


def ranges_over_corners(graph: Graph, box: Interval) -> dict[int, tuple[Tensor, Tensor]]:
    """Smallest and largest value ``[*shape]`` of each node over the corners of one box."""
    low, high = box.lower.flatten(), box.upper.flatten()
    corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=low.numel()))).double()
    values = {0: (low + corners * (high - low)).view(-1, *graph.input_shape)}
    for index, node in enumerate(graph.nodes):
        if node.operator is not None:
            inputs = (values[source] for source in node.inputs)
            values[index] = node.operator.forward(graph.weights, *inputs)
    return {index: (value.amin(0), value.amax(0)) for index, value in values.items()}


@pytest.mark.parametrize("name", CASES)
def test_an_exact_node_takes_its_bounds_at_corners(name: str) -> None:
    build, shape = CASES[name]
    torch.manual_seed(90)
    graph = nets.graph_of(build(), shape)
    box = Interval(-torch.rand(1, *shape).double() - 0.2, torch.rand(1, *shape).double() + 0.2)
    image = graph.intervals(box)
    reached = ranges_over_corners(graph, box)
    for node in graph.interval_exact:
        low, high = reached[node]
        torch.testing.assert_close(image[node].lower[0], low, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(image[node].upper[0], high, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "exact", "inexact"),
    [("elementwise", True, False), ("padded", True, False), ("shared", True, True)],
)
def test_which_cases_are_recognised(name: str, exact: bool, inexact: bool) -> None:
    build, shape = CASES[name]
    graph = nets.graph_of(build(), shape)
    everything = set(range(len(graph.nodes)))
    assert bool(set(graph.interval_exact) - {0}) is exact
    assert bool(everything - graph.interval_exact) is inexact


def test_a_sum_of_branches_is_not_called_exact() -> None:
    graph = nets.graph_of(Joined(), (3,))
    sums = [i for i, node in enumerate(graph.nodes) if type(node.operator).__name__ == "Sum"]
    assert sums
    assert not set(sums) & graph.interval_exact
