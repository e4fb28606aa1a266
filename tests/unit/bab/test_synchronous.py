"""`bab.force_synchronous`: the same subproblems with the same bits, whatever else is at hand.

Bits are compared without tolerance. A failure means that memory and speed of two world sizes cannot
be compared, as they would not do the same work.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.children import child
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network, load_network
from complete_verifier.specification import Region, read_vnnlib
from tests.regression.user_runs import BENCHMARKS
from tests.unit.bounds.region_cases import at_most, mlp, network_of, region

BETA = BetaOptions(iterations=6, alpha_rate=0.1, beta_rate=0.1)
SETTINGS = BabSettings(batch_size=64, beta=BETA, reduceop="max", synchronous=True)


def _run(network: Network, where: Region, root: Root, settings: BabSettings, memory: int | None):
    context = BabContext(
        network=network,
        region=where,
        bounds=BoundOptions(memory_bytes=memory),
        confirm=lambda *_: None,
        memory_used=lambda: 0.0,
    )
    return activation_branch_and_bound(root, context, settings)


def _wide(seed: int = 0) -> tuple[Network, Region, Root]:
    """Wide enough that a product's bits depend on its number of rows."""
    torch.manual_seed(seed)
    network = network_of(mlp(200, 96, 96, 2), (200,))
    where = region([-0.05] * 200, [0.05] * 200, at_most([1.0, -1.0], 0.0))
    root = verify_region(network, where, BoundSettings(method="crown")).root
    assert root is not None
    return network, where, root


def _children(bounding: Bounding, count: int) -> DomainBatch:
    """`count` subproblems of the root, each with other splits."""
    width = bounding.clauses.index.shape[1]
    slopes = bounding.features.join_alphas(bounding.root.alphas)[:, 0]
    batch = DomainBatch(
        clause=torch.zeros(count, dtype=torch.int64),
        path=torch.ones(count, dtype=torch.int64),
        depth=torch.zeros(count, dtype=torch.int64),
        splits=torch.zeros(count, 0, dtype=torch.int32),
        points=torch.zeros(count, 0),
        betas=torch.zeros(count, width, 0),
        alphas=slopes[bounding.clauses.index[:1]].expand(count, -1, -1),
        ranges=bounding.root_ranges(count),
        margin=torch.full((count,), -torch.inf, dtype=torch.float64),
    )
    unstable = bounding.features.unstable.nonzero().squeeze(1)
    for level in range(2):
        feature = unstable[(torch.arange(count) * (3 + level) + level) % len(unstable)]
        batch = child(batch, feature, torch.arange(count) % 2 * 2 - 1)
    return batch


def _bounding(root: Root, *, in_tiles: bool, tile_size: int = 128) -> Bounding:
    return Bounding(
        root,
        Features.of(root),
        OpenClauses.of(root, 0.0),
        BoundOptions(),
        in_tiles=in_tiles,
        tile_size=tile_size,
    )


@pytest.mark.parametrize("tile_size", [16, 128])
def test_a_subproblem_has_the_same_bits_alone_and_among_others(tile_size: int) -> None:
    _, _, root = _wide()
    bounding = _bounding(root, in_tiles=True, tile_size=tile_size)
    batch = _children(bounding, 150)
    together = bounding.optimize(batch, replace(BETA, prune_ratio=None), stop_early=False)
    for chosen in ([149], [3, 77], list(range(140, 20, -1))):
        index = torch.tensor(chosen)
        alone = bounding.optimize(
            batch.select(index), replace(BETA, prune_ratio=None), stop_early=False
        )
        assert torch.equal(alone.margin, together.margin[index])
        assert torch.equal(alone.alphas, together.alphas[index])
        assert torch.equal(alone.betas, together.betas[index])
        assert torch.equal(bounding.evaluate(batch.select(index)), bounding.evaluate(batch)[index])


@pytest.mark.parametrize(
    ("asked", "got"), [(16, 16), (17, 16), (31, 16), (47, 32), (128, 128), (130, 128)]
)
def test_a_tile_has_a_height_at_which_rows_keep_their_bits(asked: int, got: int) -> None:
    _, _, root = _wide()
    bounding = _bounding(root, in_tiles=True, tile_size=asked)
    assert bounding.part_size() == got
    batch = _children(bounding, 50)
    order = torch.arange(50).flip(0)
    assert torch.equal(bounding.evaluate(batch.select(order)), bounding.evaluate(batch)[order])
    assert bounding.evaluate(batch.select(torch.arange(0))).numel() == 0


def test_slopes_may_be_optimised_where_they_are() -> None:
    """The same bits in the memory of the batch, which otherwise stays as it was."""
    _, _, root = _wide()
    bounding = _bounding(root, in_tiles=True, tile_size=16)
    batch, beta = _children(bounding, 40), replace(BETA, prune_ratio=None)
    before = batch.alphas.clone()
    found = bounding.optimize(batch, beta, stop_early=False)
    assert torch.equal(batch.alphas, before) and not torch.equal(found.alphas, before)
    own = batch.select(torch.arange(40))
    again = bounding.optimize(own, beta, stop_early=False, in_place=True)
    assert torch.equal(again.alphas, found.alphas)
    assert torch.equal(again.margin, found.margin)
    assert torch.equal(own.alphas[:32], found.alphas[:32])  # whole tiles are views of the batch


@pytest.mark.parametrize(
    ("count", "height"), [(1, 16), (64, 16), (65, 32), (200, 64), (512, 128), (9999, 128)]
)
def test_a_round_of_few_subproblems_is_cut_into_low_tiles(count: int, height: int) -> None:
    """One of 128, filled up, would leave other ranks without any, and take as long for one."""
    bounding = _bounding(_wide()[2], in_tiles=True)
    bounding.fit_tiles(count)
    assert bounding.part_size() == height
    low = _bounding(_wide()[2], in_tiles=True, tile_size=48)
    low.fit_tiles(count)
    assert low.part_size() == min(height, 48)


def test_free_ranks_take_what_is_cheap_apiece_within_a_tiles_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounding = _bounding(_wide()[2], in_tiles=False)
    monkeypatch.setattr("complete_verifier.bab.bounding._TILE_BYTES", 1 << 40)
    assert bounding.economical == 8 * bounding.worthwhile > 64
    # As many as part_size would bound at a time where so many bytes are all there is.
    limited = replace(bounding.options, memory_bytes=1 << 18)
    fitting = Bounding(bounding.root, bounding.features, bounding.clauses, limited).part_size()
    assert 1 < fitting < bounding.economical
    monkeypatch.setattr("complete_verifier.bab.bounding._TILE_BYTES", 1 << 18)
    assert bounding.economical == fitting


def test_a_tile_takes_the_memory_of_a_few_tables() -> None:
    """In tables ``[128, T]``: what is returned, α, best α, two moments, two lines, and per pass the
    coefficients with the line each took. Bounds kept beside the lines would be two more, the lines
    of the pass before three.
    """
    _, _, root = _wide()
    tables = {}
    for tile_size in (32, 128):
        bounding = _bounding(root, in_tiles=True, tile_size=tile_size)
        batch = _children(bounding, 128)
        batch = batch.select(torch.arange(128))  # with memory of its own
        with MemoryMeter() as meter:
            bounding.optimize(batch, replace(BETA, prune_ratio=None), stop_early=False)
        tables[tile_size] = meter.peak_bytes / (4 * bounding.features.total * 128)
    assert tables[128] < 15.5
    assert tables[32] < 6.5


def test_without_tiles_the_bits_do_depend_on_the_batch() -> None:
    """What makes the test above worth its name on this machine's kernels."""
    _, _, root = _wide()
    bounding = _bounding(root, in_tiles=False)
    batch = _children(bounding, 150)
    together = bounding.evaluate(batch)
    alone = torch.cat([bounding.evaluate(batch.select(torch.tensor([b]))) for b in range(150)])
    if torch.equal(alone, together):
        pytest.skip("this machine's products do not depend on the number of rows")
    assert torch.allclose(alone, together, atol=1e-5)


def test_two_runs_leave_the_same_subproblems_with_the_same_bits() -> None:
    network, where, root = _wide()
    settings = replace(SETTINGS, batch_size=16, max_iterations=5)
    one = _run(network, where, root, settings, None)
    other = _run(network, where, root, settings, 30_000)
    assert one == other and one.fingerprint != 0
    assert one.rounds == 5 and one.domains_visited > 50
    eager = replace(settings, synchronous=False, beta=replace(BETA, iterations=7))
    assert _run(network, where, root, eager, None).fingerprint != one.fingerprint


def test_neither_the_batch_grows_nor_does_the_order_follow_the_depth() -> None:
    """Memory is at hand, yet 2 rounds of 4 subproblems stay rounds of 4."""
    network, where, root = _wide()
    settings = replace(SETTINGS, batch_size=4, max_iterations=6, min_batch_ratio=0.0)
    settings = replace(settings, method="babsr", beta=BetaOptions(iterations=0))

    def visited(settings: BabSettings) -> int:
        return _run(network, where, root, settings, None).domains_visited

    assert visited(settings) == 2 + 4 + 8 * 4
    assert visited(replace(settings, synchronous=False)) == 2 + 4 + 8 + 16 + 32 + 64
    fixed = replace(settings, synchronous=False, enlarge=False)
    assert visited(fixed) == 2 + 4 + 8 * 4
    deep = _run(network, where, root, replace(settings, worst_first=False), None)
    assert deep == _run(network, where, root, settings, None)


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=f"no benchmarks at {BENCHMARKS}")
def test_two_runs_of_mnist_256x6_agree_bit_for_bit() -> None:
    """`scripts/synchronous_twice.py` does it with a batch of 512 and ten rounds."""
    folder = BENCHMARKS / "vnncomp2022" / "mnist_fc"
    network = load_network(folder / "onnx" / "mnist-net_256x6.onnx", OneRankWeights(), check=False)
    (where,) = read_vnnlib(folder / "vnnlib" / "prop_0_0.05.vnnlib").regions
    root = verify_region(network, where, BoundSettings(method="crown")).root
    assert root is not None
    settings = replace(SETTINGS, max_iterations=3, beta=replace(BETA, iterations=3))
    outcomes: list[BabOutcome] = [
        _run(network, where, root, settings, memory) for memory in (None, 1 << 22)
    ]
    assert outcomes[0] == outcomes[1] and outcomes[0].domains_visited > 64


def test_what_a_round_leaves_undone_for_want_of_time_waits_again() -> None:
    """No subproblem of this region can be excluded: a split makes one more, and none is lost."""
    network, _, _ = _wide()
    where = region([-0.05] * 200, [0.05] * 200, at_most([1.0, -1.0], 100.0))
    root = verify_region(network, where, BoundSettings(method="crown")).root
    assert root is not None
    settings = replace(
        SETTINGS, batch_size=160, min_batch_ratio=0.0, beta=replace(BETA, iterations=1)
    )
    whole_rounds = np.cumsum([1, 2, 4, 8, 16, 32, 64, 128, *[160] * 9])
    broken_off = 0
    for allowed in range(60, 84, 6):
        asked = 0

        def late(ahead_seconds: float = 0.0, allowed: int = allowed) -> bool:
            nonlocal asked
            asked += 1
            return asked > allowed

        context = BabContext(
            network=network,
            region=where,
            bounds=BoundOptions(out_of_time=late),
            confirm=lambda *_: None,
        )
        outcome = activation_branch_and_bound(root, context, settings)
        assert outcome.ending is Ending.TIMEOUT
        splits = outcome.domains_visited // 2
        assert outcome.domains_left == 1 + splits
        broken_off += splits not in whole_rounds
    assert broken_off
