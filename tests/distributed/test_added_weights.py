"""Branch and bound on a network without its inactive neurons, whose weights are sharded like it.

The narrowed layers have parameters of their own, added to those of the network. A failure means
that ranks branch on another network than one rank does, or hold its narrowed layers whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from parity_cases import BranchCase, Found
from torch import Tensor

from auto_LiRPA_patches.sharding.added_weights import AddedWeights
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource
from complete_verifier.model.network import load_network
from tests.distributed.ranks import RankPool
from tests.regression.user_runs import decimal, random_mlp, vnnlib

pytestmark = pytest.mark.distributed

SIZES = (5, 60, 50, 60, 1)
LOW, HIGH = 0.2, 0.7


class Added:
    """What is added to a network's weights in this process, and how much of it this rank holds."""

    def __init__(self, *, forgets: bool) -> None:
        self.sources: list[AddedWeights] = []
        self._register, self._gather = AddedWeights.register, AddedWeights.gather
        self._forgets = forgets

    def __enter__(self) -> Added:
        found = self

        def register(source: AddedWeights, name: str, tensor: Tensor) -> WeightHandle:
            if source not in found.sources:
                found.sources.append(source)
            return found._register(source, name, tensor)

        def gather(source: AddedWeights, handle: WeightHandle) -> Tensor:
            weight = found._gather(source, handle)
            if not found._forgets or handle not in source._added:
                return weight
            weight = weight.clone()  # the bug: an element of an added weight is another's
            weight.view(-1)[-1:] += 0.01
            return weight

        AddedWeights.register, AddedWeights.gather = register, gather  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        AddedWeights.register = self._register  # type: ignore[method-assign]
        AddedWeights.gather = self._gather  # type: ignore[method-assign]

    def elements(self) -> list[tuple[int, int]]:
        """Whole and held, of each added parameter."""
        parts = [part for source in self.sources for part in source._own.share()]
        return [(part.full_numel, part.local_numel) for part in parts]


def branch(
    ranks: Ranks, onnx: str, prop: str, prefetch: bool = True, forgets: bool = False
) -> tuple[Found, list[tuple[int, int]]]:
    weights: WeightSource = OneRankWeights()
    if ranks.world.size > 1:
        weights = ShardedWeights(ranks.data, prefetch=prefetch)
    with Added(forgets=forgets) as added:
        found = BranchCase(Path(onnx), Path(prop), rounds=3, batch=8).run(weights)
        return found, added.elements()


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A network with inactive neurons, and a property that bounds leave open."""
    folder = tmp_path_factory.mktemp("net")
    onnx = str(random_mlp(folder / "net.onnx", SIZES, seed=4))
    network = load_network(onnx, OneRankWeights(), check=False)
    points = LOW + (HIGH - LOW) * torch.rand(4096, 5, generator=torch.Generator().manual_seed(0))
    smallest = float(network.forward(points).min())
    prop = folder / "property.vnnlib"
    prop.write_text(vnnlib([LOW] * 5, [HIGH] * 5, 1, f"(<= Y_0 {decimal(smallest - 0.02)})"))
    return onnx, str(prop)


@pytest.fixture(scope="module")
def alone(rank_pool: RankPool, problem: tuple[str, str]) -> tuple[Found, list[tuple[int, int]]]:
    """What one rank finds."""
    (found,) = rank_pool.run(branch, 1, *problem, timeout=150)
    assert found[1], "no neuron is inactive: nothing is tested"
    return found


@pytest.mark.parametrize(("world_size", "prefetch"), [(2, True), (2, False), (3, True)])
def test_branching_on_a_narrowed_network_has_the_bits_of_one_rank(
    rank_pool: RankPool,
    problem: tuple[str, str],
    alone: tuple[Found, list[tuple[int, int]]],
    world_size: int,
    prefetch: bool,
) -> None:
    expected = [(full, -(-full // world_size)) for full, _ in alone[1]]
    for found, parts in rank_pool.run(branch, world_size, *problem, prefetch, timeout=150):
        assert found == alone[0]
        assert parts == expected


def test_a_wrong_element_of_an_added_weight_changes_the_search(
    rank_pool: RankPool, problem: tuple[str, str], alone: tuple[Found, list[tuple[int, int]]]
) -> None:
    for found, _ in rank_pool.run(branch, 2, *problem, True, True, timeout=150):
        assert found["branch and bound"] != alone[0]["branch and bound"]
