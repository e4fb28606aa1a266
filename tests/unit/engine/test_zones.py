"""Which layers are split by neuron, and how: zones found by walking the graph.

A failure is a layer that is both column and row layer, or a zone with a neuron that depends on
another rank's.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import zones
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.zones import find_zones
from tests.unit.engine.nets import Residual, conv_net, graph_of, make, mlp


class InsideAndAcross(nn.Module):
    """A sum of two column layers inside a zone, and a shortcut across the next; input (4,)."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 6)
        self.up, self.back, self.last = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(torch.relu(self.left(x)) + torch.relu(self.right(x)) * 2)
        return self.last(h + self.back(torch.relu(self.up(h))))


class Reshaped(nn.Module):
    """A reshape inside a zone; input (4,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x)).unsqueeze(1)
        return self.last(torch.relu(h - 0.1).flatten(1))


def kinds(graph: Graph, ranks: int = 2) -> str:
    """Per Linear layer C, R, A (a row layer that stands alone) or - (on every rank)."""
    found = find_zones(graph, ranks)
    assert not found.columns & found.rows
    assert found.columns <= found.nodes.keys() and not found.rows & found.nodes.keys()
    letters = ""
    for index in range(len(graph.nodes)):
        if zones.is_plain_linear(graph, index):
            letter = "A" if index in found.alone else "R" if index in found.rows else "-"
            letters += "C" if index in found.columns else letter
    return letters


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (mlp(4, 8, 3), (4,), "CR"),
        (mlp(4, 8, 8, 3), (4,), "CR-"),
        (mlp(4, 8, 8, 8, 3), (4,), "CRCR"),
        (mlp(4, 8, 2, 8, 3), (4,), "CRCR"),
        (Residual(), (4,), "CRCR"),
        (InsideAndAcross(), (4,), "CCRCR-"),
        (Reshaped(), (4,), "CR"),
        (conv_net(), (2, 6, 5), "-"),
    ],
)
def test_layers_between_elementwise_operators_are_paired(
    module: nn.Module, shape: tuple[int, ...], expected: str
) -> None:
    assert kinds(graph_of(module.eval(), shape)) == expected


def test_large_layers_without_a_partner_are_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(mlp(4, 8, 8, 3), (4,))
    monkeypatch.setattr(zones, "_WORTH_WEIGHTS", 24)
    assert kinds(graph) == "CRA"
    monkeypatch.setattr(zones, "_WORTH_WEIGHTS", 25)
    assert kinds(graph) == "CR-"


def test_one_rank_and_layers_narrower_than_the_ranks_split_nothing() -> None:
    graph = graph_of(mlp(4, 8, 3), (4,))
    assert kinds(graph, 1) == "--"
    assert kinds(graph, 8) == "CR"
    assert kinds(graph, 9) == "--"


def test_what_depends_on_a_neighbour_is_on_every_rank() -> None:
    module, shape = make("mixed", 1)
    graph = graph_of(module, shape)
    split = find_zones(graph, 2).nodes
    names = {type(graph.nodes[index].operator).__name__ for index in split}
    assert names <= {"Linear", "Relu", "ScaleShift", "Tanh", "Reshape"}
