"""The helper that starts ranks must itself not hang, and must blame the right rank.

A failure means that other distributed tests could wait for ever or hide their reason.
"""

from __future__ import annotations

import os
import time

import pytest
import torch

from auto_LiRPA_patches.sharding.collectives import Ranks
from tests.distributed.ranks import RankFailure, RankPool

pytestmark = pytest.mark.distributed


def where_am_i(ranks: Ranks, prefix: str) -> tuple[str, int, int, int]:
    return f"{prefix}{ranks.mesh.rank}", ranks.mesh.tp, torch.get_num_threads(), os.getpid()


def gather_unequal_sizes(ranks: Ranks) -> None:
    ranks.world.all_gather(torch.zeros(10 if ranks.world.rank == 0 else 100000))


def fail_late_and_early(ranks: Ranks) -> None:
    if ranks.world.rank == 0:
        time.sleep(0.5)
        raise LookupError("late")
    raise LookupError("early")


def hang(ranks: Ranks) -> None:
    time.sleep(60)


def test_values_come_back_by_rank_from_single_threaded_processes(rank_pool: RankPool) -> None:
    values = rank_pool.run(where_am_i, 2, "r", tp=2)
    assert [value[:3] for value in values] == [("r0", 2, 1), ("r1", 2, 1)]
    assert len({os.getpid(), *(value[3] for value in values)}) == 3


def test_processes_are_used_again(rank_pool: RankPool) -> None:
    first = [value[3] for value in rank_pool.run(where_am_i, 2, "")]
    assert [value[3] for value in rank_pool.run(where_am_i, 2, "")] == first


def test_the_rank_that_failed_first_is_blamed_and_the_pool_lives_on(rank_pool: RankPool) -> None:
    with pytest.raises(RankFailure, match=r"rank 1 of 2 failed:(.|\n)*LookupError: early"):
        rank_pool.run(fail_late_and_early, 2)
    assert len(rank_pool.run(where_am_i, 2, "")) == 2


def test_a_hanging_rank_is_killed_and_poisons_the_pool() -> None:
    with RankPool() as pool:
        pool.run(where_am_i, 1, "")  # the wait below is not for the start
        with pytest.raises(RankFailure, match=r"hang: no answer from ranks \[0\] within 1 s"):
            pool.run(hang, 1, timeout=1)
        with pytest.raises(RankFailure, match="not started: .* in hang: no answer"):
            pool.run(where_am_i, 1, "")


def test_gloo_kills_a_rank_that_gathers_unequal_parts() -> None:
    # Not a promise but the reason why a weight's header travels ahead of the weight: if this
    # starts to fail, gloo has learned to report it and `sharded_weights` should say so.
    with (
        RankPool() as pool,
        pytest.raises(RankFailure, match=r"gather_unequal_sizes: rank \d died with exit code -6"),
    ):
        pool.run(gather_unequal_sizes, 2, shared_memory=False)
