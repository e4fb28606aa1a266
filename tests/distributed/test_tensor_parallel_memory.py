"""What a rank holds of a layer split by neuron, in bytes: while it is loaded and while it is used.

One zone of 8 192 neurons over 64 inputs, 2 MB of weights. A failure means that some tensor as large
as the layer is whole on a rank, or that weights are not cut twice on a grid of ranks.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tables.seeded_weights import SeededWeights, one_zone
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource
from tests.distributed.ranks import RankPool
from tests.unit.engine import nets

pytestmark = pytest.mark.distributed

INPUTS, WIDTH, BATCH = 64, 8192, 32
NAME = f"zone:{INPUTS}x{WIDTH}x1"
WEIGHT_BYTES = 4 * (INPUTS * WIDTH + WIDTH + WIDTH + 1)


class WholeWeights(SeededWeights):
    """The bug to be caught: a part is taken of a weight that was made whole."""

    def part(self, handle: WeightHandle, axis: int, start: int, size: int) -> Tensor:
        whole = super().part(handle, axis, 0, handle.shape[0])
        return whole.narrow(axis, start, size)


def measure(ranks: Ranks, fsdp: bool = False, whole: bool = False) -> dict[str, object]:
    """Bytes while loading and while bounding, parameters held, and the bounds."""
    target: WeightSource = ShardedWeights(ranks.data) if fsdp else OneRankWeights()
    graph = one_zone(NAME)
    if whole:
        graph.weights.__class__ = WholeWeights
    with MemoryMeter() as loading:
        graph = split_neurons(graph, ranks.tp, target)
    middle = torch.rand(BATCH, INPUTS, generator=torch.Generator().manual_seed(1))
    box = Interval(middle - 0.02, middle + 0.02)
    held = graph.weights.held()
    rows = SpecRows(torch.tensor([[1.0], [-1.0]]))
    with MemoryMeter() as meter:
        meter.track(*held, kind=MemoryKind.WEIGHTS)
        state = crown_relaxations(graph, box, BoundOptions())
        lower = crown_bounds(state, rows, BoundOptions())
    graph.weights.settle()
    return {
        "loading": loading.peak_bytes,
        "peak": meter.peak_bytes,
        "parameters": sum(tensor.nbytes for tensor in held),
        "lower": lower,
    }


def test_memory_of_a_zone_falls_with_the_ranks(rank_pool: RankPool) -> None:
    (one,) = rank_pool.run(measure, 1)
    for size, ratio in ((2, 1.95), (3, 2.85)):
        for found in rank_pool.run(measure, size, tp=size):
            assert one["peak"] / found["peak"] >= ratio
            assert found["parameters"] <= WEIGHT_BYTES / size + 4 * (INPUTS + 4)
            # Beside its part a rank holds one block of the generator.
            assert found["loading"] <= found["parameters"] + 4 * 3 * 256 * INPUTS
            assert torch.allclose(found["lower"], one["lower"], rtol=1e-6, atol=1e-6)


def test_a_weight_made_whole_while_loading_would_show(rank_pool: RankPool) -> None:
    for found in rank_pool.run(measure, 2, False, True, tp=2):
        assert found["loading"] > found["parameters"] + 4 * 3 * 256 * INPUTS


def test_a_grid_of_ranks_cuts_weights_twice(rank_pool: RankPool) -> None:
    (one,) = rank_pool.run(measure, 1)
    grid = rank_pool.run(measure, 4, True, tp=2)
    for found in grid:
        assert found["parameters"] <= WEIGHT_BYTES / 4 + 64
        assert torch.equal(found["lower"], grid[0]["lower"])
        assert torch.allclose(found["lower"], one["lower"], rtol=1e-6, atol=1e-6)


def convolutions_below_a_zone(ranks: Ranks) -> dict[str, Any]:
    """Shape and numbers held of each parameter, and bounds; weights are cut over the data axis."""
    torch.manual_seed(2)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(72, 40), nn.ReLU(), nn.Linear(40, 3)),
    )
    whole = nets.graph_of(net, (3, 8, 8), torch.float32)
    graph = split_neurons(whole, ranks.tp, ShardedWeights(ranks.data))
    graph.weights.check_agreement()
    middle = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    box = Interval(middle - 0.01, middle + 0.01)
    state = crown_relaxations(graph, box, BoundOptions())
    lower = crown_bounds(state, SpecRows(torch.cat([torch.eye(3), -torch.eye(3)])), BoundOptions())
    graph.weights.settle()
    held = {share.shape: share.local_numel for share in graph.weights.share()}
    return {"held": held, "lower": lower}


def test_a_grid_of_ranks_cuts_convolutions_over_its_data_axis(rank_pool: RankPool) -> None:
    (one,) = rank_pool.run(convolutions_below_a_zone, 1)
    kernels, zone = {(8, 3, 3, 3), (8, 8, 3, 3)}, {(40, 72): (20, 72), (3, 40): (3, 20)}
    assert kernels | set(zone) <= set(one["held"])
    grid = rank_pool.run(convolutions_below_a_zone, 4, tp=2)
    for found in grid:
        assert kernels | set(zone.values()) <= set(found["held"])
        for shape, count in found["held"].items():
            assert count == -(-math.prod(shape) // 2), shape
        assert torch.equal(found["lower"], grid[0]["lower"])
        assert torch.allclose(found["lower"], one["lower"], rtol=1e-5, atol=1e-5)
