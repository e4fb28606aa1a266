"""IBP, CROWN and α-CROWN with weights sharded over 2, 3 and 4 ranks against one rank.

No sum crosses a rank under fsdp, so bounds must be equal bit for bit. A failure means that the
proof on several ranks is a proof about another network.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations, interval_rows
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding import matrix_blocks
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle
from complete_verifier.model.network import Network, load_network
from tests.distributed.ranks import RankPool

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT.parent / "shared" / "benchmarks"
# name -> file, radius of the box around a seeded input, outputs bounded, α iterations
NETWORKS = {
    "digits mlp": (ROOT / "exp_configs/digits/onnx/mlp.onnx", 0.05, 10, 8),
    "digits conv": (ROOT / "exp_configs/digits/onnx/conv.onnx", 0.03, 10, 20),
    "digits residual": (ROOT / "exp_configs/digits/onnx/resnet.onnx", 0.02, 10, 6),
    "mnist_fc 256x6": (
        BENCHMARKS / "vnncomp2022/mnist_fc/onnx/mnist-net_256x6.onnx.gz",
        0.004,
        10,
        8,
    ),
    "cifar10 resnet_2b": (
        BENCHMARKS / "vnncomp2021/cifar10_resnet/onnx/resnet_2b.onnx.gz",
        0.002,
        2,
        20,
    ),
}
NETWORKS |= {"digits mlp in blocks": NETWORKS["digits mlp"]}
MOST_AT_ONCE = 1500  # weights: the larger layers come in several blocks
networks = pytest.mark.parametrize("name", list(NETWORKS))


class ForgetfulWeights(ShardedWeights):
    """The bug to be caught: the last rank's slice of every large parameter never arrives."""

    def gather(self, handle: WeightHandle) -> Tensor:
        full = super().gather(handle).clone()
        if full.numel() > 16:
            full.view(-1)[-(full.numel() // 4) :] = 0
        return full


def _load(ranks: Ranks, name: str, *, forgetful: bool) -> Network:
    weights = OneRankWeights()
    if ranks.world.size > 1:
        kind = ForgetfulWeights if forgetful else ShardedWeights
        weights = kind(ranks.data, prefetch=True)
    most = MOST_AT_ONCE if name.endswith("in blocks") else matrix_blocks._MOST_AT_ONCE
    with patch.object(matrix_blocks, "_MOST_AT_ONCE", most):
        return load_network(NETWORKS[name][0], weights, check=False)


def all_bounds(ranks: Ranks, name: str, forgetful: bool = False) -> dict[str, bytes]:
    """Bytes of the lower and (negated) upper bounds of the outputs, by method."""
    network = _load(ranks, name, forgetful=forgetful)
    _, radius, outputs, iterations = NETWORKS[name]
    generator = torch.Generator().manual_seed(7)
    center = torch.rand((1, *network.input_shape), generator=generator)
    box = Interval(center - radius, center + radius)
    unit = torch.eye(network.num_outputs)[:outputs].view(-1, *network.graph.output_shape)
    rows = SpecRows(torch.cat([unit, -unit]))
    options = BoundOptions()
    state = crown_relaxations(network.graph, box, options)
    crown = crown_bounds(state, rows, options)
    alpha = optimize_alpha(
        state, rows, lambda lower: lower > -torch.inf, options, AlphaOptions(iterations=iterations)
    )
    if alpha.iterations == 0 or not bool((alpha.lower >= crown).all()):
        raise ValueError("α-CROWN did not run, or is looser than CROWN")
    ibp = interval_rows(Relaxations(network.graph, box), rows)
    found = {"ibp": ibp, "crown": crown, "alpha-crown": alpha.lower}
    return {method: bound.numpy().tobytes() for method, bound in found.items()}


def parameter_bytes(ranks: Ranks, name: str) -> list[tuple[int, int]]:
    """(full, local) elements of each parameter."""
    shares = _load(ranks, name, forgetful=False).graph.weights.share()
    return [(share.full_numel, share.local_numel) for share in shares]


def bounds_of_swapped_blocks(ranks: Ranks) -> dict[str, bytes]:
    """The bug to be caught: ranks gather the blocks of a layer in another order than it has."""
    gather = ShardedWeights.gather

    def swapped(source: ShardedWeights, handle: WeightHandle) -> Tensor:
        alike = [each for each in source.handles if each.shape == handle.shape and "[" in each.name]
        if handle in alike:
            handle = alike[alike.index(handle) - 1]
        return gather(source, handle)

    with patch.object(ShardedWeights, "gather", swapped):
        return all_bounds(ranks, "digits mlp in blocks")


def _skip_if_absent(name: str) -> None:
    if not NETWORKS[name][0].exists():
        pytest.skip(f"{NETWORKS[name][0]} is not here")


@networks
def test_bounds_of_sharded_weights_have_the_bits_of_one_rank(
    rank_pool: RankPool, name: str
) -> None:
    _skip_if_absent(name)
    (alone,) = rank_pool.run(all_bounds, 1, name)
    for world_size in (2,) if "resnet_2b" in name else (2, 3, 4):
        for rank, found in enumerate(rank_pool.run(all_bounds, world_size, name, timeout=120)):
            assert found == alone, f"rank {rank} of {world_size}"


def test_blocks_are_made_of_layers_and_change_no_more_than_rounding(rank_pool: RankPool) -> None:
    """Otherwise the case above would be about whole layers, or about another network."""
    names = "digits mlp", "digits mlp in blocks"
    (whole,), (blocks,) = (rank_pool.run(parameter_bytes, 1, name) for name in names)
    assert len(blocks) > len(whole) + 2
    assert sum(full for full, _ in blocks) == sum(full for full, _ in whole)
    assert max(full for full, _ in blocks) <= MOST_AT_ONCE < max(full for full, _ in whole)
    (whole_bounds,), (bounds,) = (rank_pool.run(all_bounds, 1, name) for name in names)
    for method, found in bounds.items():
        expected = torch.frombuffer(bytearray(whole_bounds[method]), dtype=torch.float32)
        torch.testing.assert_close(
            torch.frombuffer(bytearray(found), dtype=torch.float32), expected, rtol=1e-4, atol=1e-4
        )


def test_a_block_that_takes_the_place_of_another_changes_the_bounds(rank_pool: RankPool) -> None:
    (alone,) = rank_pool.run(all_bounds, 1, "digits mlp in blocks")
    for found in rank_pool.run(bounds_of_swapped_blocks, 2):
        assert all(found[method] != alone[method] for method in alone)


def test_a_slice_that_never_arrives_changes_the_bounds(rank_pool: RankPool) -> None:
    (alone,) = rank_pool.run(all_bounds, 1, "digits mlp")
    for found in rank_pool.run(all_bounds, 2, "digits mlp", True):
        assert all(found[method] != alone[method] for method in alone)


@networks
def test_each_rank_holds_one_padded_slice_of_every_parameter(
    rank_pool: RankPool, name: str
) -> None:
    _skip_if_absent(name)
    for world_size in (2, 3):
        for shares in rank_pool.run(parameter_bytes, world_size, name):
            assert shares
            assert all(local == -(-full // world_size) for full, local in shares)
