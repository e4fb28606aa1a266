"""Collectives on real gloo groups of 2, 3 and 4 ranks against what one process computes.

A failure means that ranks would go on with numbers that are not each other's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives import Ranks, gather_rows, start, sum_over_ranks
from auto_LiRPA_patches.sharding.mesh import Mesh
from tests.distributed.ranks import RankFailure, RankPool, run_ranks

pytestmark = pytest.mark.distributed

Run = Callable[..., list[Any]]
worlds = pytest.mark.parametrize("world_size", [2, 3, 4])
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


def _part(rank: int, *shape: int) -> Tensor:
    """Return what rank `rank` contributes; different on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


# -- run by every rank ---------------------------------------------------------------------


def gather_every_dtype(ranks: Ranks) -> list[Tensor]:
    part = _part(ranks.world.rank, 3, 2) * 100
    return [ranks.world.all_gather(part.to(dtype)) for dtype in DTYPES]


def gather_odd_shapes(ranks: Ranks) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    part = _part(ranks.world.rank, 4, 6)
    into = ranks.world.gather_buffer(part)
    filled = ranks.world.all_gather(part, into=into)
    views, scalars = ranks.world.all_gather(part.T[1:]), ranks.world.all_gather(part[0, 0])
    return views, scalars, filled, ranks.world.all_gather(part[:1, 2])  # one element, stride 6


def gather_uneven(ranks: Ranks, sizes: list[int]) -> Tensor:
    return ranks.world.all_gather_uneven(_part(ranks.world.rank, sizes[ranks.world.rank], 2), sizes)


def gather_while_others_talk(ranks: Ranks) -> tuple[Tensor, Tensor, list[int]]:
    """Two gathers on their way, and other collectives between start and end."""
    world = ranks.world
    parts = [_part(world.rank, 50), _part(world.rank + 10, 3)]
    pending = [world.start_all_gather(part, world.gather_buffer(part)) for part in parts]
    said = [rank for (rank,) in world.all_gather_integers("test", [world.rank])]
    second, first = pending[1].wait(), pending[0].wait()
    return first, second, said


def _pieces(world_size: int) -> list[list[int]]:
    """Rows that each rank sends to each: some none, one rank nothing at all."""
    return [
        [(3 * s + 5 * d) % 4 if s != 1 else 0 for d in range(world_size)] for s in range(world_size)
    ]


def move_rows(ranks: Ranks) -> tuple[list[int], Tensor, Tensor]:
    world = ranks.world
    send = _pieces(world.size)[world.rank]
    receive = world.exchange_sizes(send)
    rows = _part(world.rank, sum(send), 2).to(torch.bfloat16)
    moved = world.all_to_all_uneven(rows, send, receive)
    nothing = [0] * world.size
    return receive, moved, world.all_to_all_uneven(torch.zeros(0, 2), nothing, nothing)


def _loss(rows: Tensor, total: Tensor, rank: int) -> Tensor:
    """What rank `rank` contributes to the loss; weighs every element and rank differently."""
    weight = torch.arange(1.0, rows.numel() + 1).view_as(rows) * 10.0**rank
    return (weight * rows**2).sum() + (rank + 2) * (total**2).sum()


def differentiate(ranks: Ranks, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Gradients of the summed loss in this rank's rows and in its part of the sum."""
    world = ranks.world
    own = _part(world.rank, sizes[world.rank], 2).double().requires_grad_(True)
    part = _part(world.rank + 20, 3).double().requires_grad_(True)
    rows, total = gather_rows(world, own, sizes), sum_over_ranks(world, part)
    _loss(rows, total, world.rank).backward()
    assert own.grad is not None and part.grad is not None
    return own.grad, part.grad


def reduce_and_broadcast(ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    rank = ranks.world.rank
    total = ranks.world.all_reduce_sum(torch.tensor([1.0, 10.0**rank]))
    empty = ranks.world.all_reduce_sum(torch.zeros(0))
    return total, empty, ranks.world.broadcast(_part(rank, 5), source=1)


def exchange_metadata(ranks: Ranks) -> dict[str, object]:
    world, rank = ranks.world, ranks.world.rank
    return {
        "integers": world.all_gather_integers("test", [rank, -(2**62) - rank]),
        "objects": world.all_gather_object({"rank": rank, "text": "x" * rank}),
        "object": world.broadcast_object(f"from {rank}", source=world.size - 1),
        "max": world.agree_max(10 - rank),
        "min": world.agree_min(10 - rank),
        "any": (world.agree_any(rank == 1), world.agree_any(False)),
        "all": (world.agree_all(True), world.agree_all(rank != 1)),
    }


def gather_along_axes(ranks: Ranks) -> dict[str, object]:
    return {
        "data": [r for (r,) in ranks.data.all_gather_integers("test", [ranks.mesh.rank])],
        "tp": [r for (r,) in ranks.tp.all_gather_integers("test", [ranks.mesh.rank])],
        "positions": (ranks.data.rank, ranks.tp.rank),
        "sum": ranks.data.all_reduce_sum(torch.tensor([10.0**ranks.mesh.rank])).item(),
    }


def disagree(ranks: Ranks) -> str:
    try:
        ranks.world.agree_same("configuration hash", f"hash{min(ranks.world.rank, 1)}")
    except RankMismatchError as error:
        return str(error)
    return "no error"


def meet_at_different_calls(ranks: Ranks) -> str:
    try:
        if ranks.world.rank == 0:
            ranks.world.agree_max(3)
        else:
            ranks.world.barrier()
    except RankMismatchError as error:
        return str(error)
    return "no error"


def wait_for_nobody(ranks: Ranks) -> None:
    if ranks.world.rank == 1:
        time.sleep(7)
        return
    begun = time.monotonic()
    try:
        ranks.world.all_reduce_sum(torch.zeros(3))
    finally:
        seconds = time.monotonic() - begun
        assert 1.5 < seconds < 6, seconds


def start_without_peers(ranks: Ranks, folder: str) -> None:
    start(Mesh(2, 1, 0), "gloo", 1, init_method=f"file://{folder}/rendezvous")


def lose_a_peer(ranks: Ranks) -> None:
    if ranks.world.rank == 1:
        raise LookupError("the reason")
    ranks.world.all_gather(torch.zeros(3))


def trace_names(ranks: Ranks) -> set[str]:
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        ranks.data.all_gather(torch.zeros(3))
        ranks.data.all_reduce_sum(torch.zeros(3))
        ranks.data.barrier()
    return {event.key for event in profile.key_averages() if event.key.startswith("data.")}


# -- tests ---------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["memory", "network"])
def run(request: pytest.FixtureRequest, rank_pool: RankPool) -> Run:
    """`RankPool.run` for ranks that share memory, and for those that do not."""
    return partial(rank_pool.run, shared_memory=request.param)


@worlds
def test_all_gather_stacks_every_ranks_part(run: Run, world_size: int) -> None:
    parts = torch.stack([_part(rank, 3, 2) * 100 for rank in range(world_size)])
    for gathered in run(gather_every_dtype, world_size):
        for tensor, dtype in zip(gathered, DTYPES, strict=True):
            assert tensor.dtype == dtype
            assert torch.equal(tensor, parts.to(dtype))


@worlds
def test_all_gather_takes_views_scalars_and_a_given_buffer(run: Run, world_size: int) -> None:
    parts = torch.stack([_part(rank, 4, 6) for rank in range(world_size)])
    for views, scalars, filled, ones in run(gather_odd_shapes, world_size):
        assert torch.equal(views, parts.transpose(1, 2)[:, 1:])
        assert torch.equal(scalars, parts[:, 0, 0])
        assert torch.equal(filled, parts)
        assert torch.equal(ones, parts[:, :1, 2])


@pytest.mark.parametrize("sizes", [[3, 1], [0, 2], [0, 0], [2, 0, 5], [1, 1, 1], [0, 7, 0, 1]])
def test_uneven_gather_concatenates_rows_in_rank_order(run: Run, sizes: list[int]) -> None:
    expected = torch.cat([_part(rank, size, 2) for rank, size in enumerate(sizes)])
    for gathered in run(gather_uneven, len(sizes), sizes):
        assert torch.equal(gathered, expected)


@worlds
def test_gathers_on_their_way_do_not_mix_with_each_other(run: Run, world_size: int) -> None:
    ranks = range(world_size)
    for first, second, said in run(gather_while_others_talk, world_size):
        assert torch.equal(first, torch.stack([_part(rank, 50) for rank in ranks]))
        assert torch.equal(second, torch.stack([_part(rank + 10, 3) for rank in ranks]))
        assert said == list(ranks)


@worlds
def test_uneven_pieces_reach_the_rank_they_are_for(run: Run, world_size: int) -> None:
    table = _pieces(world_size)
    sent = [
        _part(rank, sum(row), 2).to(torch.bfloat16).split(row) for rank, row in enumerate(table)
    ]
    for rank, (receive, moved, nothing) in enumerate(run(move_rows, world_size)):
        assert receive == [row[rank] for row in table]
        assert torch.equal(moved, torch.cat([pieces[rank] for pieces in sent]))
        assert nothing.shape == (0, 2)


@pytest.mark.parametrize("sizes", [[3, 1], [2, 0, 4], [0, 0], [1, 3, 0, 2]])
def test_gradients_are_those_of_the_losses_added_up(run: Run, sizes: list[int]) -> None:
    ranks = range(len(sizes))
    leaves = [_part(r, sizes[r], 2).double().requires_grad_(True) for r in ranks]
    parts = [_part(r + 20, 3).double().requires_grad_(True) for r in ranks]
    rows, total = torch.cat(leaves), torch.stack(parts).sum(dim=0)
    torch.stack([_loss(rows, total, rank) for rank in ranks]).sum().backward()
    for rank, (own, part) in enumerate(run(differentiate, len(sizes), sizes)):
        torch.testing.assert_close(own, leaves[rank].grad)
        torch.testing.assert_close(part, parts[rank].grad)


@worlds
def test_sum_and_broadcast_reach_every_rank_once(run: Run, world_size: int) -> None:
    # Powers of ten show a part that is dropped or added twice in its own digit.
    expected = torch.tensor([world_size, sum(10.0**rank for rank in range(world_size))])
    for total, empty, sent in run(reduce_and_broadcast, world_size):
        assert torch.equal(total, expected)
        assert empty.shape == (0,)
        assert torch.equal(sent, _part(1, 5))


@worlds
def test_metadata_reaches_every_rank(run: Run, world_size: int) -> None:
    for got in run(exchange_metadata, world_size):
        assert got == {
            "integers": [(rank, -(2**62) - rank) for rank in range(world_size)],
            "objects": [{"rank": rank, "text": "x" * rank} for rank in range(world_size)],
            "object": f"from {world_size - 1}",
            "max": 10,
            "min": 11 - world_size,
            "any": (True, False),
            "all": (True, False),
        }


def test_each_axis_of_a_two_by_two_mesh_talks_to_its_own_ranks(run: Run) -> None:
    for rank, got in enumerate(run(gather_along_axes, 4, tp=2)):
        data = [rank % 2, rank % 2 + 2]
        assert got == {
            "data": data,
            "tp": [rank - rank % 2, rank - rank % 2 + 1],
            "positions": (rank // 2, rank % 2),
            "sum": sum(10.0**r for r in data),
        }


def test_an_axis_as_long_as_the_world_leaves_the_other_with_one_rank(run: Run) -> None:
    for rank, got in enumerate(run(gather_along_axes, 2, tp=2)):
        assert got == {"data": [rank], "tp": [0, 1], "positions": (0, rank), "sum": 10.0**rank}


def test_differing_values_are_named_on_every_rank(run: Run) -> None:
    for message in run(disagree, 3):
        assert "configuration hash: expected the same on all 3 ranks" in message
        assert "'hash0' on rank 0, 'hash1' on rank 1, 'hash1' on rank 2" in message


def test_ranks_that_meet_at_different_calls_are_told_so(run: Run) -> None:
    for message in run(meet_at_different_calls, 2):
        assert re.search(
            "rank 0 at .*agree_max with 1 values.*, rank 1 at .*barrier with 0", message
        )


def test_a_collective_nobody_joins_ends_at_the_timeout(run: Run) -> None:
    with pytest.raises(RankFailure, match='"world.all_reduce_sum" failed on rank 0 of 2'):
        run(wait_for_nobody, 2, collective_timeout=2)


def test_a_world_whose_ranks_do_not_come_is_reported(tmp_path: Path) -> None:
    # A process of its own: torch numbers groups per process, and a failed one is counted.
    with pytest.raises(RankFailure, match="rank 0 could not join a world of 2 ranks within 1 s"):
        run_ranks(start_without_peers, 1, str(tmp_path))


def test_a_lost_peer_ends_the_run_and_its_error_is_the_one_shown(run: Run) -> None:
    with pytest.raises(RankFailure, match=r"rank 1 of 2 failed:(.|\n)*LookupError: the reason"):
        run(lose_a_peer, 2)


def test_collectives_carry_their_names_in_traces(run: Run) -> None:
    for names in run(trace_names, 2):
        assert names == {"data.all_gather", "data.all_reduce_sum", "data.barrier"}
