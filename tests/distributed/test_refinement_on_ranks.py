"""Neurons refined by 2, 3 and 4 ranks, each its own, against one rank: equal bit for bit.

A failure is a bound that went to another neuron, or a rank that went on from other bounds.
"""

from __future__ import annotations

import pytest
import torch

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.refinement import RefineContext, RefineSettings, refine
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from tests.distributed.ranks import RankPool
from tests.distributed.shared_search import APART, IN_STEP, WHOLE, network_on, seeded
from tests.unit.bounds.region_cases import at_most, region

pytestmark = pytest.mark.distributed

TILES = BoundOptions(tile_rows=16)
SETTINGS = RefineSettings(
    rounds=2,
    first_iterations=2,
    beta=BetaOptions(iterations=2, alpha_rate=0.1, beta_rate=0.1),
    batch_size=6,
    synchronous=True,
)


def refined(ranks: Ranks, weights: str, swapped: bool = False) -> tuple[float, list[torch.Tensor]]:
    """How much tighter a root became, and its ends, layer by layer."""
    network = network_on(ranks, seeded(5, 16, 16, 16, 2), 5, fsdp=weights != WHOLE)
    where = region([-1] * 5, [1] * 5, at_most([1.0, -1.0], 100.0))
    settings = BoundSettings(bounds=TILES, alpha=AlphaOptions(iterations=2))
    root = verify_region(network, where, settings).root
    assert root is not None
    pool = ranks.data
    if swapped:
        gather = pool.all_gather_uneven
        pool.all_gather_uneven = lambda ends, sizes: gather(ends.flip(0), sizes)
    partners = Partners(pool, pool if weights == IN_STEP else Communicator.single())
    found = refine(root, RefineContext(TILES, partners, lambda _: lambda ahead: False), SETTINGS)
    kept = [found.bounds[node] for node in sorted(found.bounds)]
    ends = [end for bounds in kept for end in (bounds.lower, bounds.upper)]
    widths = [
        sum(float((own.upper - own.lower).sum()) for own in of.bounds.values())
        for of in (root, found)
    ]
    return widths[0] - widths[1], ends


@pytest.mark.parametrize("weights", [WHOLE, IN_STEP, APART])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_refine_to_the_bits_of_one(rank_pool: RankPool, world: int, weights: str) -> None:
    ((gain, expected),) = rank_pool.run(refined, 1, weights)
    assert gain > 0
    for _, ends in rank_pool.run(refined, world, weights):
        assert all(torch.equal(a, b) for a, b in zip(ends, expected, strict=True))


def test_bounds_of_other_neurons_would_be_seen(rank_pool: RankPool) -> None:
    ((_, expected),) = rank_pool.run(refined, 1, WHOLE)
    for _, ends in rank_pool.run(refined, 2, WHOLE, True):
        shapes = [end.shape for end in ends] == [end.shape for end in expected]
        assert not shapes or not all(map(torch.equal, ends, expected))
