"""Faults planted in branch and bound over ranks: what is lost, unsaid, raised, or finds no memory.

A failure is a fault that goes unnoticed (a false proof), or one that changes what others find.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from complete_verifier.bab import activation, exchange, share, stop
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.partners import PartnerError, Partners
from complete_verifier.bab.pool import DomainPool
from tests.distributed.ranks import RankFailure, RankPool
from tests.distributed.shared_search import (
    SETTINGS,
    SYNCHRONOUS,
    WHOLE,
    alone_on,
    beside_the_minimum,
    boxes,
    on_ranks,
    search,
    wide,
)

pytestmark = pytest.mark.distributed


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
