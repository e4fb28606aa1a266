"""Branch and bound whose subproblems are spread over 2, 3 and 4 ranks, against one rank.

Under `bab.force_synchronous` every round is compared bit for bit; otherwise verdicts are compared
with the exact minimum. A failure is a subproblem that is lost (a false proof), bounded twice, or
bounded otherwise than on one rank.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from complete_verifier.bab import activation
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.input_pool import BoxPool, halve, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import _Search
from complete_verifier.bab.leaf import decide_leaf
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.share import next_batch
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.specification import Region
from tests.distributed.ranks import RankPool
from tests.distributed.shared_search import (
    APART,
    BETA,
    BOXES,
    IN_STEP,
    KINDS,
    KINDS_FOR_BOXES,
    PACKETS,
    SETTINGS,
    SYNCHRONOUS,
    WHOLE,
    WORLDS,
    alone_on,
    beside_the_minimum,
    boxes,
    more_boxes,
    network_on,
    on_ranks,
    search,
    wide,
)
from tests.unit.bab.test_mixed_branching import Attention
from tests.unit.bounds.region_cases import at_most, region

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("method", ["kfsb", "random"])
def test_synchronous_rounds_are_those_of_one_rank_bit_for_bit(
    rank_pool: RankPool, method: str
) -> None:
    """With sharded weights too: read in step by three ranks, and apart by two."""
    module, where = wide()
    settings = replace(SYNCHRONOUS, method=method)
    alone, rounds, largest = alone_on(module, where, settings, WHOLE)
    assert len(rounds) == 6 and rounds[-1][1] > 40 and alone.fingerprint != 0
    for size in WORLDS:
        for outcome, own_rounds, own_largest in on_ranks(
            rank_pool, search, size, module, where, settings, KINDS[size]
        ):
            assert outcome == alone
            assert own_rounds == rounds
            assert own_largest < 0.75 * largest


@pytest.mark.parametrize("weights", [WHOLE, PACKETS, APART])
def test_rounds_beside_softmax_and_products_are_those_of_one_rank(
    rank_pool: RankPool, weights: str
) -> None:
    torch.manual_seed(1)
    module, settings = Attention().eval(), replace(SYNCHRONOUS, max_iterations=4)
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], 0.0), at_most([-1.0, 1.0], -0.1))
    alone, rounds, _ = alone_on(module, where, settings, WHOLE)
    assert len(rounds) == 5 and rounds[-1][1] > 20 and alone.fingerprint != 0
    for size in (3,) if weights == PACKETS else WORLDS:  # packets between more ranks take long
        for outcome, own_rounds, _ in on_ranks(
            rank_pool, search, size, module, where, settings, weights
        ):
            assert (outcome, own_rounds) == (alone, rounds)


@pytest.mark.parametrize(("gap", "expected"), [(2e-3, Ending.PROVEN), (-2e-3, Ending.VIOLATED)])
def test_verdicts_beside_the_true_minimum(
    rank_pool: RankPool, gap: float, expected: Ending
) -> None:
    """Leaves included: with one step of α and β, many subproblems are split to the end."""
    module, where = beside_the_minimum(gap)
    settings = replace(SETTINGS, beta=replace(BETA, iterations=1), max_iterations=None)
    for size in WORLDS:
        outcomes = [
            found
            for found, *_ in on_ranks(rank_pool, search, size, module, where, settings, KINDS[size])
        ]
        assert {found.ending for found in outcomes} == {expected}
        assert len({found.domains_visited for found in outcomes}) == 1
        points = {
            found.counterexample and found.counterexample.inputs.tobytes() for found in outcomes
        }
        assert len(points) == 1 and (None in points) == (expected is Ending.PROVEN)


@pytest.mark.parametrize("synchronous", [False, True])
def test_ranks_do_not_wait_for_the_first_subproblem(rank_pool: RankPool, synchronous: bool) -> None:
    """It is split before anything is bounded, unless rounds have to be those of one rank."""
    module, where = beside_the_minimum(0.02)
    settings = replace(SETTINGS, synchronous=synchronous, max_iterations=1)
    for size, kind, waiting in ((2, WHOLE, 4), (3, APART, 8), (4, WHOLE, 8), (2, IN_STEP, 1)):
        for _, rounds, _ in on_ranks(rank_pool, search, size, module, where, settings, kind):
            done, visited, found, worst = rounds[0]
            assert (done, visited, found) == (0, 0, 1 if synchronous else waiting)
            assert worst < 0
            assert synchronous or kind == IN_STEP or rounds[1][1] >= 2 * waiting


def search_where_a_step_is_worth_any_number(ranks: Ranks, *arguments: Any) -> Any:
    """As on an accelerator."""
    with patch.object(Bounding, "worthwhile", 1 << 40):
        return search(ranks, *arguments)


def test_few_subproblems_are_split_into_no_more_than_a_batch(rank_pool: RankPool) -> None:
    """However many a step is worth taking for: there are 192 neurons to split at."""
    module, where = wide()
    settings = replace(SETTINGS, max_iterations=3)
    for found in on_ranks(
        rank_pool, search_where_a_step_is_worth_any_number, 2, module, where, settings, WHOLE
    ):
        visited = [after - before for (_, before, *_), (_, after, *_) in pairwise(found[1])]
        assert visited[0] <= 2 * settings.batch_size
        assert max(visited) <= 2 * 2 * settings.batch_size


MANNERS = {
    "brute force, crown": InputSplitSettings(adv_check=-1),
    "smart, alpha-crown": InputSplitSettings(heuristic="sb", bounding="alpha-crown", adv_check=-1),
}


@pytest.mark.parametrize("manner", list(MANNERS))
def test_synchronous_boxes_are_those_of_one_rank_bit_for_bit(
    rank_pool: RankPool, manner: str
) -> None:
    module, where = boxes()
    inputs = MANNERS[manner]
    alone, rounds, largest = alone_on(module, where, BOXES, WHOLE, inputs)
    assert len(rounds) == 13 and alone.fingerprint != 0 and rounds[-1][1] > 200
    for size in WORLDS:
        for outcome, own_rounds, _ in on_ranks(
            rank_pool, search, size, module, where, BOXES, KINDS_FOR_BOXES[size], inputs
        ):
            assert outcome == alone
            assert own_rounds == rounds


@pytest.mark.parametrize(
    ("threshold", "expected"), [(-1.39, Ending.PROVEN), (-1.24, Ending.VIOLATED)]
)
def test_verdicts_of_boxes_beside_the_minimum(
    rank_pool: RankPool, threshold: float, expected: Ending
) -> None:
    """The least value that descent finds from 500 of 20 000 points is -1.3796."""
    module, _ = boxes()
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], threshold))
    settings = replace(BOXES, synchronous=False, batch_size=32, max_iterations=None)
    for size in WORLDS:
        found = on_ranks(
            rank_pool, search, size, module, where, settings, WHOLE, InputSplitSettings()
        )
        assert {outcome.ending for outcome, *_ in found} == {expected}
        assert len({outcome.domains_visited for outcome, *_ in found}) == 1
        if expected is Ending.PROVEN:
            assert all(largest > 0 for *_, largest in found)  # every rank had work


@pytest.mark.parametrize("manner", list(MANNERS))
def test_synchronous_boxes_of_several_regions_are_those_of_one_rank(
    rank_pool: RankPool, manner: str
) -> None:
    module, where = boxes()
    asked = (module, where, BOXES, WHOLE, MANNERS[manner], more_boxes())
    alone, rounds, largest = alone_on(*asked)
    only_first, *_ = alone_on(*asked[:-1])
    assert len(rounds) == 13 and rounds[-1][1] > 200
    assert 0 != alone.fingerprint != only_first.fingerprint
    for size in WORLDS:
        for outcome, own_rounds, _ in on_ranks(rank_pool, search, size, *asked):
            assert outcome == alone
            assert own_rounds == rounds


@pytest.mark.parametrize(("gap", "expected"), [(0.08, Ending.PROVEN), (-0.15, Ending.VIOLATED)])
def test_verdicts_of_several_regions_on_ranks(
    rank_pool: RankPool, gap: float, expected: Ending
) -> None:
    """The first region is safe; one of the others need not be, and is some rank's root."""
    module, _ = boxes()
    safe = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], -1.42))
    settings = replace(BOXES, synchronous=False, batch_size=32, max_iterations=None)
    for size in WORLDS:
        for more in (more_boxes(gap), more_boxes(gap)[:1]):
            found = on_ranks(
                rank_pool, search, size, module, safe, settings, WHOLE, InputSplitSettings(), more
            )
            assert {outcome.ending for outcome, *_ in found} == {expected}
            assert len({outcome.domains_visited for outcome, *_ in found}) == 1


def without_others_roots(ranks: Ranks, *arguments: Any) -> Any:
    """Only the first rank begins, with the regions that would be its own."""
    begin = _Search._begin

    def first_only(self: _Search) -> None:
        if ranks.data.rank == 0:
            begin(self)

    with patch.object(_Search, "_begin", first_only):
        return search(ranks, *arguments)


def test_a_region_that_no_rank_begins_with_would_be_noticed(rank_pool: RankPool) -> None:
    """The false proof that `test_verdicts_of_several_regions_on_ranks` would see."""
    module, _ = boxes()
    safe = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], -1.42))
    settings = replace(BOXES, synchronous=False, batch_size=32, max_iterations=None)
    found = on_ranks(
        rank_pool,
        without_others_roots,
        2,
        *(module, safe, settings, WHOLE, InputSplitSettings(), more_boxes(-0.15)[:1]),
    )
    assert {outcome.ending for outcome, *_ in found} == {Ending.PROVEN}


def take_a_batch(ranks: Ranks, waiting: list[int], least: int) -> int:
    """How many of a batch of 100 this rank takes, of pools with so many boxes."""
    pool, rank = BoxPool(), ranks.data.rank
    boxes = root_boxes(torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.bool))
    for _ in range(10):
        boxes = halve(boxes, torch.zeros(boxes.count, dtype=torch.int64))
    first = sum(waiting[:rank])
    pool.add(boxes.select(torch.arange(first, first + waiting[rank])))
    partners = Partners(ranks.data, Communicator.single("weights"))
    return next_batch(partners, pool, 100, waiting, in_order=False, least=least).count


@pytest.mark.parametrize(
    ("waiting", "least", "taken"),
    [
        ([300, 300], 1, [50, 50]),
        ([300, 300], 70, [70, 70]),
        ([300, 300, 300], 5000, [100, 100, 100]),
        ([600, 0], 5000, [100, 100]),
        ([20, 4], 5000, [12, 12]),
    ],
)
def test_ranks_take_batches_that_are_worth_their_steps(
    rank_pool: RankPool, waiting: list[int], least: int, taken: list[int]
) -> None:
    assert rank_pool.run(take_a_batch, len(waiting), waiting, least) == taken


def leaves_until_late(ranks: Ranks, module: nn.Module, where: Region, own: list[int]) -> int:
    """Subproblems back in this rank's pool where the limit passes at the second ask."""
    network = network_on(ranks, module, where.lower.size, fsdp=True)
    root = verify_region(network, where, BoundSettings(method="crown")).root
    assert root is not None
    asked = 0

    def late(_ahead: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > 2  # once when the tree is made, then at the first leaf and the seventeenth

    bounds, partners = BoundOptions(out_of_time=late), Partners(ranks.data, ranks.data)
    context = BabContext(
        network=network, region=where, bounds=bounds, confirm=no_counterexample, partners=partners
    )
    activation.decide_leaf = lambda *_: (True, np.zeros((1, where.lower.size)))
    try:
        tree = activation._Tree(root, context, SETTINGS)
        before = len(tree.pool)
        every = torch.zeros(own[ranks.data.rank], dtype=torch.int64)
        assert tree._leaves(tree.stand_in.select(every)) is None
        return len(tree.pool) - before
    finally:
        activation.decide_leaf = decide_leaf


def no_counterexample(_region: Region, _point: np.ndarray) -> None:
    return None


def test_leaves_that_are_not_decided_in_time_go_back_on_every_rank(rank_pool: RankPool) -> None:
    """Sixteen are decided: all of the first rank's, some of the second's, none of the third's."""
    module, where = beside_the_minimum(2e-3)
    assert rank_pool.run(leaves_until_late, 3, module, where, [3, 20, 2]) == [0, 7, 2]
