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
from exact_minimum import affine_layers, minimum
from torch import nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import activation, exchange, share, stop
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.input_pool import BoxPool, halve, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.leaf import decide_leaf
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.partners import PartnerError, Partners
from complete_verifier.bab.pool import DomainPool
from complete_verifier.bab.share import next_batch
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Region
from tests.distributed.ranks import RankFailure, RankPool
from tests.unit.bab.test_mixed_branching import Attention
from tests.unit.bounds.region_cases import at_most, mlp, region

pytestmark = pytest.mark.distributed

WORLDS = (2, 3, 4)
BETA = BetaOptions(iterations=4, alpha_rate=0.1, beta_rate=0.1)
SETTINGS = BabSettings(batch_size=16, beta=BETA, reduceop="max", max_iterations=60)
SYNCHRONOUS = replace(SETTINGS, synchronous=True, max_iterations=5)


# How ranks hold weights: whole; in slices, every gather a collective or read from memory in step;
# or in slices that each reads in its own order.
WHOLE, PACKETS, IN_STEP, APART = "whole", "packets", "in step", "apart"
KINDS = {2: APART, 3: IN_STEP, 4: WHOLE}
KINDS_FOR_BOXES = {2: APART, 3: PACKETS, 4: WHOLE}  # with packets, whole while boxes are split
_NOBODY = Communicator.single()


def network_on(
    ranks: Ranks, module: nn.Module, num_inputs: int, *, fsdp: bool, shared_memory: bool = True
) -> Network:
    """The network that a module is, its weights whole or in slices."""
    weights: WeightSource = OneRankWeights()
    if fsdp:
        weights = ShardedWeights(ranks.data, shared_memory=shared_memory)
    bounded = build_bounded_module(module, torch.zeros(1, num_inputs))
    graph = build_graph(bounded, weights, BuildOptions())
    return Network(graph, (num_inputs,), num_inputs, graph.output_shape[0], None, (1, num_inputs))


def alone_on(*arguments: Any) -> tuple[BabOutcome, list[tuple[Any, ...]], int]:
    """What one rank comes to, with one thread as ranks have: bits may depend on the number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return search(Ranks.alone(), *arguments)
    finally:
        torch.set_num_threads(threads)


def on_ranks(rank_pool: RankPool, function: Any, size: int, *arguments: Any) -> list[Any]:
    """Each rank's result; with time enough for a machine that does other work as well."""
    return rank_pool.run(function, size, *arguments, timeout=400, collective_timeout=120)


def seeded(*sizes: int, seed: int = 0, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(seed)
    module = mlp(*sizes).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    return module


def wide() -> tuple[nn.Module, Region]:
    """Wide enough that a product's bits depend on its number of rows; two clauses."""
    clauses = at_most([1.0, -1.0], 0.0), at_most([-1.0, 1.0], 0.02)
    return seeded(200, 96, 96, 2), region([-0.05] * 200, [0.05] * 200, *clauses)


def beside_the_minimum(gap: float, seed: int = 0) -> tuple[nn.Module, Region]:
    """A clause that the exact minimum misses by `gap`, or meets where that is negative."""
    module = seeded(3, 10, 8, 2, seed=seed, scale=1.5)
    low, high = -np.ones(3), np.ones(3)
    truth = minimum(affine_layers(module, (3,)), np.array([1.0, -1.0]), low, high)
    return module.float(), region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth - gap))


def search(
    ranks: Ranks,
    module: nn.Module,
    where: Region,
    settings: BabSettings,
    weights: str,
    inputs: InputSplitSettings | None = None,
) -> tuple[BabOutcome, list[tuple[Any, ...]], int]:
    """The outcome, what all ranks had come to after each round, and this rank's largest pool."""
    fsdp = weights != WHOLE
    network = network_on(
        ranks, module, where.lower.size, fsdp=fsdp, shared_memory=weights != PACKETS
    )

    def confirm(asked: Region, point: np.ndarray) -> Counterexample | None:
        if settings.synchronous:
            return None  # the search is to go on
        outputs = np.zeros(2, dtype=np.float32)
        with torch.no_grad():
            if not fsdp:
                outputs = network.forward(torch.from_numpy(point).unsqueeze(0))[0].numpy()
        holds = fsdp or asked.violated_by(outputs)
        return Counterexample(point, outputs) if holds else None

    context = BabContext(
        network=network,
        region=where,
        bounds=BoundOptions(),
        confirm=confirm,
        partners=Partners(
            ranks.data,
            ranks.data if weights in (PACKETS, IN_STEP) and inputs is None else _NOBODY,
        ),
    )
    rounds: list[tuple[Any, ...]] = []
    largest = 0
    together = stop.together

    def noting(partners: Partners, own: stop.Tally, failure: Exception | None) -> stop.Tally:
        nonlocal largest
        total = together(partners, own, failure)
        largest = max(largest, own.waiting)
        rounds.append((total.rounds, total.visited, total.waiting, total.worst_margin))
        return total

    stop.together = noting  # type: ignore[assignment]
    try:
        if inputs is not None:
            with context.partners.apart(network.graph.weights):
                return input_branch_and_bound(context, inputs, settings), rounds, largest
        root = verify_region(network, where, BoundSettings(method="crown")).root
        assert root is not None
        return activation_branch_and_bound(root, context, settings), rounds, largest
    finally:
        stop.together = together


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


def boxes() -> tuple[nn.Module, Region]:
    """Twelve rounds of 64 boxes leave some open."""
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], -1.35))
    return seeded(4, 24, 24, 2, seed=3, scale=2.0), where


BOXES = BabSettings(batch_size=128, max_iterations=12, synchronous=True)
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


def lose_one(communicator: Communicator, batch: Any, table: Any) -> Any:
    """The bug to be caught: the first subproblem that rank 1 receives is forgotten."""
    received = _exchange(communicator, batch, table)
    return received.select(torch.arange(received.count)[int(communicator.rank == 1) :])


_exchange = exchange.exchange


def with_a_loss(ranks: Ranks, *arguments: Any, unchecked: bool) -> Any:
    share.exchange = lose_one
    check = share.check_conserved
    if unchecked:
        share.check_conserved = lambda *_: None
    try:
        return search(ranks, *arguments)
    finally:
        share.exchange, share.check_conserved = _exchange, check


def lose(ranks: Ranks, *arguments: Any) -> Any:
    return with_a_loss(ranks, *arguments, unchecked=False)


def lose_unseen(ranks: Ranks, *arguments: Any) -> Any:
    return with_a_loss(ranks, *arguments, unchecked=True)


@pytest.mark.parametrize("inputs", [None, InputSplitSettings(adv_check=-1)])
def test_a_subproblem_lost_on_its_way_is_an_error(
    rank_pool: RankPool, inputs: InputSplitSettings | None
) -> None:
    module, where = beside_the_minimum(2e-3) if inputs is None else boxes()
    settings = replace(SYNCHRONOUS, max_iterations=40, batch_size=64)
    with pytest.raises(RankFailure, match="SoundnessError: .* were held by 2 rank.* before a move"):
        on_ranks(rank_pool, lose, 2, module, where, settings, WHOLE, inputs)


def test_without_the_check_a_lost_subproblem_would_change_the_count(rank_pool: RankPool) -> None:
    module, where = wide()
    alone, *_ = alone_on(module, where, SYNCHRONOUS, WHOLE)
    found = on_ranks(rank_pool, lose_unseen, 2, module, where, SYNCHRONOUS, WHOLE)
    assert all(outcome.fingerprint != alone.fingerprint for outcome, *_ in found)


def deaf(ranks: Ranks, *arguments: Any) -> Any:
    """The bug to be caught: every rank takes its own counts for those of all."""
    together = stop.together

    def own_alone(partners: Partners, own: stop.Tally, failure: Exception | None) -> stop.Tally:
        return together(Partners.alone(), own, failure)

    stop.together = own_alone
    try:
        return search(ranks, *arguments)
    finally:
        stop.together = together


def test_counts_that_are_not_summed_prove_nothing(rank_pool: RankPool) -> None:
    """Rank 1 holds nothing at first, and would call that a proof."""
    module, where = beside_the_minimum(-2e-3)
    with pytest.raises(RankFailure):
        on_ranks(rank_pool, deaf, 2, module, where, SETTINGS, WHOLE)


def fail_on_rank_1(ranks: Ranks, error: Exception, late: bool, *arguments: Any) -> Any:
    """What a rank comes to when rank 1 fails the fourth time it bounds subproblems.

    Args:
        late: only when these are bounded, so that their slopes are overwritten already.
    """
    optimize, calls = activation.Bounding.optimize, []

    def failing(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(1)
        if ranks.data.rank == 1 and len(calls) == 4:
            if late:
                optimize(self, *given, **named)
            raise error
        return optimize(self, *given, **named)

    activation.Bounding.optimize = failing  # type: ignore[method-assign]
    try:
        return search(ranks, *arguments)[0]
    except PartnerError as found:
        return str(found)
    finally:
        activation.Bounding.optimize = optimize  # type: ignore[method-assign]


def test_a_failure_on_one_rank_of_three_is_known_to_all(rank_pool: RankPool) -> None:
    module, where = wide()
    arguments = (module, where, SYNCHRONOUS, WHOLE)
    said = on_ranks(rank_pool, fail_on_rank_1, 3, TypeError("planted"), False, *arguments)
    expected = "branch and bound failed on rank 1: internal error: TypeError: planted"
    assert said == [expected] * 3


def test_too_little_memory_on_one_rank_of_three_changes_nothing_else(rank_pool: RankPool) -> None:
    """Field case 4: the batch is worked on in halves, with the same bits."""
    module, where = wide()
    alone, *_ = alone_on(module, where, SYNCHRONOUS, WHOLE)
    arguments = (module, where, SYNCHRONOUS, WHOLE)
    for error, late in (
        (MemoryError("planted"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False),
    ):
        found = on_ranks(rank_pool, fail_on_rank_1, 3, error, late, *arguments)
        assert found == [alone] * 3


def without_room_on_rank_1(ranks: Ranks, *arguments: Any) -> tuple[BabOutcome, int]:
    """What a rank comes to, and how often rank 1 had no room for subproblems of others."""
    make_room, refused = DomainPool.make_room, []

    def lacking(pool: DomainPool, count: int) -> None:
        if ranks.data.rank == 1 and count:
            refused.append(count)
            raise torch.OutOfMemoryError("planted")
        make_room(pool, count)

    with patch.object(DomainPool, "make_room", lacking):
        return search(ranks, *arguments)[0], len(refused)


def without_room_too_late(ranks: Ranks, *arguments: Any) -> tuple[BabOutcome, int]:
    """Rank 1 finds it has none for what was handed over to it already."""
    add, moved = DomainPool.add, exchange.exchange
    arrived: list[DomainBatch] = []

    def remembered(communicator: Communicator, batch: DomainBatch, table: Any) -> DomainBatch:
        arrived.append(moved(communicator, batch, table))
        return arrived[-1]

    def lacking(pool: DomainPool, batch: DomainBatch) -> None:
        if ranks.data.rank == 1 and batch.count and any(batch is own for own in arrived):
            raise torch.OutOfMemoryError("planted")
        add(pool, batch)

    with patch.object(share, "exchange", remembered), patch.object(DomainPool, "add", lacking):
        return search(ranks, *arguments)[0], len(arrived)


def test_a_rank_without_room_for_what_has_arrived_ends_the_instance(rank_pool: RankPool) -> None:
    """What it was handed is in no pool, so that nothing may be proven; and nobody waits for it."""
    module, where = wide()
    for outcome, arrived in on_ranks(
        rank_pool, without_room_too_late, 3, module, where, SYNCHRONOUS, WHOLE
    ):
        assert arrived
        assert outcome.ending is Ending.MEMORY
        assert "memory of rank 1" in outcome.reason


def test_a_rank_without_room_gets_no_subproblems_and_changes_nothing_else(
    rank_pool: RankPool,
) -> None:
    module, where = wide()
    alone, *_ = alone_on(module, where, SYNCHRONOUS, WHOLE)
    found = on_ranks(rank_pool, without_room_on_rank_1, 3, module, where, SYNCHRONOUS, WHOLE)
    assert [outcome for outcome, _ in found] == [alone] * 3
    assert sum(refused for _, refused in found) > 0
