"""In every phase of a run a rank holds at most one block of a layer, plus one on its way.

A failure means that some operator, the gradient pass, or loading keeps weights that sharding was
to spread over the ranks.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from parity_cases import BoundCase, BranchCase, mlp, seeded
from torch import Tensor, nn

from auto_LiRPA_patches.sharding import matrix_blocks
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle
from complete_verifier.model.network import load_network
from tests.distributed.ranks import RankPool
from tests.distributed.storages import Storages
from tests.regression.user_runs import decimal, random_mlp, vnnlib

pytestmark = pytest.mark.distributed

LARGE = 4096  # elements; half of fewer float32 travels in a packet, with no buffer of its own
SIZES = (5, 100, 90, 100, 1)


class Watch:
    """Whole large weights alive: those handed out and not yet let go, and those on their way."""

    def __init__(self) -> None:
        self.gathers = 0
        self.most_whole = 0
        self.most_coming = 0
        self.largest = 0
        self._whole = Storages()

    def see(self, source: ShardedWeights, weight: Tensor) -> None:
        self.gathers += 1
        self.largest = max(self.largest, weight.numel())
        if weight.numel() > LARGE:
            self._whole.note(weight.untyped_storage())
        self.most_whole = max(self.most_whole, self._whole.count(expected=1))
        coming = sum(ticket.slices is not None for ticket in source._tickets)
        self.most_coming = max(self.most_coming, coming)

    def left(self) -> int:
        return self._whole.count(expected=0)


@contextmanager
def watching() -> Iterator[Watch]:
    """See every gather of every sharded source of this process."""
    watch, gather = Watch(), ShardedWeights.gather

    def watched(source: ShardedWeights, handle: WeightHandle) -> Tensor:
        weight = gather(source, handle)
        watch.see(source, weight)
        return weight

    ShardedWeights.gather = watched  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        ShardedWeights.gather = gather  # type: ignore[method-assign]


def _convolutions() -> nn.Sequential:
    norm = nn.BatchNorm2d(32)
    with torch.no_grad():
        norm.weight.fill_(0.7)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.Conv2d(32, 24, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(24, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


MODULES = {
    "convolutions": BoundCase(seeded(_convolutions, 3, 6, 6), 0.02, 2, iterations=2),
    "MLP": BoundCase(seeded(lambda: mlp(5, 100, 90, 100, 3), 5), 0.3, 3, iterations=2),
    "MLP in blocks": BoundCase(seeded(lambda: mlp(5, 100, 90, 100, 3), 5), 0.3, 3, iterations=2),
    "sigmoid": BoundCase(seeded(lambda: mlp(5, 100, 90, 3, activation=nn.Sigmoid), 5), 0.3, 3),
}


def _source(ranks: Ranks, prefetch: bool) -> ShardedWeights:
    return ShardedWeights(ranks.data, prefetch=prefetch, shared_memory=not prefetch)


# -- run by every rank ---------------------------------------------------------------------


def _report(watch: Watch) -> tuple[bool, int, int, int]:
    return watch.gathers > 8, watch.most_whole, watch.most_coming, watch.left()


def load(ranks: Ranks, onnx: str, prefetch: bool) -> tuple[int, int]:
    """Tensors of a large weight's size alive after loading and the first forward pass."""
    source = _source(ranks, prefetch)
    network = load_network(onnx, source)
    network.forward(torch.zeros(2, 5))
    source.settle()
    gc.collect()
    whole = [
        tensor
        for tensor in gc.get_objects()
        if isinstance(tensor, Tensor) and tensor.numel() > LARGE
    ]
    return len(whole), max(share.local_numel for share in source.share())


def attack(ranks: Ranks, onnx: str, prefetch: bool) -> tuple[bool, int, int, int]:
    """Steps of gradient descent on the input, as PGD takes them."""
    network = load_network(onnx, _source(ranks, prefetch), check=False)
    x = torch.zeros(3, 5, requires_grad=True)
    with watching() as watch:
        for _ in range(3):
            (slope,) = torch.autograd.grad(network.forward(x).sum(), x)
            x = (x - 0.01 * slope).detach().requires_grad_(True)
        network.graph.weights.settle()
    return _report(watch)


def bound(ranks: Ranks, name: str, prefetch: bool) -> tuple[bool, int, int, int]:
    """IBP, CROWN and α-CROWN."""
    most = 4600 if name.endswith("in blocks") else matrix_blocks._MOST_AT_ONCE
    with watching() as watch, patch.object(matrix_blocks, "_MOST_AT_ONCE", most):
        MODULES[name].run(_source(ranks, prefetch))
    if name.endswith("in blocks") and watch.largest != 4500:
        raise ValueError(f"expected layers of 9000 weights in halves, found {watch.largest}")
    return _report(watch)


def branch(ranks: Ranks, onnx: str, prop: str, prefetch: bool) -> tuple[bool, int, int, int]:
    case = BranchCase(Path(onnx), Path(prop), rounds=4, batch=8)
    with watching() as watch:
        case.run(_source(ranks, prefetch))
    return _report(watch)


def keep_two(ranks: Ranks) -> int:
    """The likely bug: the gradient pass keeps what it multiplied with."""
    source = ShardedWeights(ranks.data)
    one = source.register("one", torch.ones(90, 90))
    other = source.register("other", torch.full((90, 90), 2.0))
    with watching() as watch:
        y = torch.ones(1, 90, requires_grad=True) @ source.gather(one)
        y = y @ source.gather(other)
    return watch.most_whole


# -- tests ---------------------------------------------------------------------------------

# Fetched ahead where ranks send slices; where they read them nothing is.
prefetching = pytest.mark.parametrize("prefetch", [False, True])


def _check(reports: list[tuple[bool, int, int, int]], prefetch: bool) -> None:
    for is_used, whole, coming, left in reports:
        assert is_used
        assert whole == 1
        assert coming == int(prefetch)
        assert left == 0


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(random_mlp(tmp_path_factory.mktemp("net") / "net.onnx", SIZES, seed=4))


@prefetching
def test_loading_leaves_slices_alone(rank_pool: RankPool, onnx: str, prefetch: bool) -> None:
    for found in rank_pool.run(load, 2, onnx, prefetch):
        # Slices of 9000 elements have 4500: the two of them are all that is left of that size.
        assert found == (2, 4500)


@prefetching
def test_attacks_hold_one_layer(rank_pool: RankPool, onnx: str, prefetch: bool) -> None:
    _check(rank_pool.run(attack, 2, onnx, prefetch, timeout=150), prefetch)


@prefetching
@pytest.mark.parametrize("name", list(MODULES))
def test_bounds_hold_one_layer(rank_pool: RankPool, name: str, prefetch: bool) -> None:
    _check(rank_pool.run(bound, 2, name, prefetch, timeout=150), prefetch)


@prefetching
def test_branching_holds_one_layer(
    rank_pool: RankPool, onnx: str, tmp_path: Path, prefetch: bool
) -> None:
    network = load_network(onnx, OneRankWeights(), check=False)
    generator = torch.Generator().manual_seed(0)
    smallest = float(network.forward(2 * torch.rand(4096, 5, generator=generator) - 1).min())
    prop = tmp_path / "property.vnnlib"
    prop.write_text(vnnlib([-1] * 5, [1] * 5, 1, f"(<= Y_0 {decimal(smallest - 0.05)})"))
    _check(rank_pool.run(branch, 2, onnx, str(prop), prefetch, timeout=150), prefetch)


def test_a_weight_that_is_kept_would_be_noticed(rank_pool: RankPool) -> None:
    assert rank_pool.run(keep_two, 2) == [2, 2]
