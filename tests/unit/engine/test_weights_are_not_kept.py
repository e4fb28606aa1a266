"""While α is optimised, no gathered weight outlives the operator call that asked for it.

A failure means that sharded weights pile up whole in autograd's memory, and that FSDP saves
nothing.
"""

from __future__ import annotations

import dataclasses
import weakref

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle
from tests.unit.engine import nets


class WatchedWeights(OneRankWeights):
    """Hands out copies, as a sharded source does, and remembers which are still alive.

    The storage is what is watched: autograd may keep a view of a weight and drop the weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gathers = 0
        self.owner: dict[int, str] = {}
        self.overlaps: list[tuple[str, str]] = []
        self._alive: list[tuple[weakref.ref[torch.UntypedStorage], WeightHandle]] = []

    def watch(self, graph: Graph) -> None:
        """Learn which operator each handle belongs to."""
        for node in graph.nodes:
            for field in dataclasses.fields(node.operator) if node.operator is not None else ():
                value = getattr(node.operator, field.name)
                if isinstance(value, WeightHandle):
                    self.owner[value.index] = node.name

    def gather(self, handle: WeightHandle) -> Tensor:
        self.gathers += 1
        mine = self.owner.get(handle.index)
        for other in self.alive():
            if self.owner.get(other.index) != mine:
                self.overlaps.append((other.name, handle.name))
        copy = super().gather(handle).clone()
        self._alive.append((weakref.ref(copy.untyped_storage()), handle))
        return copy

    def alive(self) -> list[WeightHandle]:
        self._alive = [entry for entry in self._alive if entry[0]() is not None]
        return [handle for _, handle in self._alive]


@pytest.mark.parametrize("name", ["mlp", "conv", "residual", "product", "mixed"])
@pytest.mark.parametrize("limit", [None, 1])
def test_no_weight_is_alive_between_operator_calls(name: str, limit: int | None) -> None:
    module, shape = nets.make(name, seed=80)
    weights = WatchedWeights()
    graph = nets.graph_of(module, shape, weights=weights)
    weights.watch(graph)
    box, matrix = nets.boxes(shape, 2, 0.6), nets.signed_outputs(graph)
    options = BoundOptions(memory_bytes=limit, tile_rows=4)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2), options)
    assert result.iterations == 2
    assert weights.gathers > 20
    assert weights.overlaps == []
    assert weights.alive() == []


def test_no_weight_is_kept_for_the_gradient_of_the_value() -> None:
    module, shape = nets.make("conv", seed=81)
    weights = WatchedWeights()
    graph = nets.graph_of(module, shape, weights=weights)
    weights.watch(graph)
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    y = graph.forward(x)
    assert weights.alive() == []
    y.sum().backward()
    assert weights.overlaps == []
    assert weights.alive() == []


def test_a_weight_that_autograd_keeps_would_be_noticed() -> None:
    weights = WatchedWeights()
    handle = weights.register("w", torch.randn(3, 3))
    x = torch.randn(1, 3, requires_grad=True)
    y = x @ weights.gather(handle).T
    assert [kept.name for kept in weights.alive()] == ["w"]
    del y
    assert weights.alive() == []
