"""Weights fetched ahead of their use: same bits, two whole layers at most, and no silent mix.

A failure means wrong weights, memory that sharding was to save, or ranks that part unnoticed.
"""

from __future__ import annotations

import random
import re
import weakref

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RanksDisagreeError
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle
from tests.distributed.ranks import RankPool
from tests.distributed.storages import Storages

pytestmark = pytest.mark.distributed

LAYERS = 5
# Odd layers are small enough to travel in a packet; even ones are not (on 2, 3 and 4 ranks).
SIZES = [(200, 211), (37,), (190, 203), (41,), (211, 199)]


def _layer(index: int) -> Tensor:
    return torch.randn(SIZES[index], generator=torch.Generator().manual_seed(index))


def _sharded(ranks: Ranks, shared_memory: bool = True) -> tuple[ShardedWeights, list[WeightHandle]]:
    source = ShardedWeights(ranks.data, prefetch=True, shared_memory=shared_memory)
    return source, [source.register(f"layer{i}", _layer(i)) for i in range(LAYERS)]


class Watch:
    """Counts whole large layers alive, this rank's own and those on their way."""

    def __init__(self) -> None:
        self._whole = Storages()
        self.most = 0

    def see(self, weight: Tensor, source: ShardedWeights) -> None:
        if weight.numel() > 1000:
            self._whole.note(weight.untyped_storage())
        coming = self.on_their_way(source)
        self.most = max(self.most, self._whole.count(expected=2 - coming) + coming)

    @staticmethod
    def on_their_way(source: ShardedWeights) -> int:
        return sum(ticket.slices is not None for ticket in source._tickets)


def passes() -> list[int]:
    """Descents and ascents of all lengths, then passes that break off or wander."""
    wander = random.Random(3)
    down = [list(range(top, -1, -1)) for top in range(LAYERS)]
    repeated = [i for _ in range(4) for order in (*down, down[-1][::-1]) for i in order]
    return [*repeated, *(wander.randrange(LAYERS) for _ in range(40)), *repeated[:30]]


# -- run by every rank ---------------------------------------------------------------------


def gather_many(ranks: Ranks, hints: bool, shared: bool) -> tuple[list[int], int, int, int]:
    """Wrong positions, most large layers alive, fetches used that were begun early, leftovers."""
    source, handles = _sharded(ranks, shared)
    watch, wrong, early = Watch(), [], 0
    for position, index in enumerate(passes()):
        if hints and index == LAYERS - 1:
            source.expect(handles[::-1])
        early += any(
            ticket.handle == handles[index] and ticket.slices is not None
            for ticket in source._tickets
        )
        weight = source.gather(handles[index])
        watch.see(weight, source)
        if not torch.equal(weight, _layer(index)):
            wrong.append(position)
        del weight
    source.settle()
    return wrong, watch.most, early, len(source._tickets)


def gather_once_per_call(ranks: Ranks) -> tuple[bool, bool, int]:
    source, handles = _sharded(ranks)
    with source.gathering_once():
        with source.gathering_once():
            first = source.gather(handles[0])
        same = source.gather(handles[0]) is first
    storage = weakref.ref(first.untyped_storage())
    again = source.gather(handles[0]) is first
    del first
    return same, again, 0 if storage() is None else 1


def stray(ranks: Ranks, after: int, index: int, to: int = 0, shared: bool = True) -> str:
    """Rank 1 gathers another layer than the others after so many passes."""
    source, handles = _sharded(ranks, shared)
    for _ in range(after):
        for handle in handles:
            source.gather(handle)
    try:
        for position, handle in enumerate(handles):
            strays = ranks.data.rank == 1 and position == index
            source.gather(handles[to] if strays else handle)
        source.settle()
    except RanksDisagreeError as error:
        return str(error)
    return "no error"


def guess_otherwise(ranks: Ranks, after: int) -> str:
    """The likely bug of the protocol: on rank 1 the guesses of what comes next go another way."""
    source, handles = _sharded(ranks, shared_memory=False)
    guess = source._order.upcoming
    calls = []

    def upcoming(count: int) -> list[int]:
        calls.append(count)
        found = guess(count)
        strays = ranks.data.rank == 1 and len(calls) > after and found
        return [0, *found[1:]] if strays else found

    source._order.upcoming = upcoming
    try:
        for _ in range(4):
            source.expect(handles[::-1])
            for handle in handles[::-1]:
                source.gather(handle)
    except RanksDisagreeError as error:
        return str(error)
    return "no error"


# -- tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("hints", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_fetched_weights_have_their_bits_whatever_was_guessed(
    rank_pool: RankPool, world_size: int, hints: bool, shared: bool
) -> None:
    found = rank_pool.run(gather_many, world_size, hints, shared)
    for wrong, most, early, left in found:
        assert wrong == [] and left == 0
        # What is read out of memory is there at once, and nothing is whole before its use.
        assert most == (1 if shared else 2)
        assert early == 0 if shared else early > 30, "hardly anything was fetched ahead"
    assert len({early for _, _, early, _ in found}) == 1, "ranks guessed differently"


def test_a_weight_used_twice_in_one_call_is_gathered_once(rank_pool: RankPool) -> None:
    assert rank_pool.run(gather_once_per_call, 2) == [(True, False, 0)] * 2


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("index", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_a_rank_that_strays_ends_the_run_with_both_names(
    rank_pool: RankPool, world_size: int, after: int, index: int, shared: bool
) -> None:
    """After 4 passes the next layers are on their way already when rank 1 takes another."""
    for message in rank_pool.run(stray, world_size, after, index, 0, shared, collective_timeout=10):
        assert f'rank 0 gathers "layer{index}"' in message
        assert 'rank 1 gathers "layer0"' in message


def test_a_rank_that_skips_a_layer_ends_the_run_with_both_names(rank_pool: RankPool) -> None:
    """What it takes has been announced to all ranks already, and is of another size."""
    for message in rank_pool.run(stray, 2, 4, 1, 3, collective_timeout=10):
        assert 'rank 0 gathers "layer1"' in message
        assert 'rank 1 gathers "layer3"' in message


@pytest.mark.parametrize("after", [0, 1, 2, 6])
def test_ranks_that_fetch_different_layers_ahead_are_told_both_names(
    rank_pool: RankPool, after: int
) -> None:
    """Wherever in its passes: messages of different size would abort the process instead."""
    for message in rank_pool.run(guess_otherwise, 2, after, collective_timeout=10):
        found = re.findall(r'rank (\d) gathers "\w+" for use \d and "(\w+)" next', message)
        assert [rank for rank, _ in found] == ["0", "1"], message
        assert found[0][1] != found[1][1] == "layer0"
