"""Messages in shared memory: as sent, whole, in order, and no rank waits for one that cannot come.

A failure means that ranks go on with numbers that are not each other's, or hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives import Ranks, mailbox
from auto_LiRPA_patches.sharding.collectives.mailbox import SLOT_BYTES, Mailbox
from tests.distributed.ranks import RankFailure, RankPool, run_ranks

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[2]
worlds = pytest.mark.parametrize("world_size", [2, 3, 4])
# In float64: within a slot, just a slot, a bit more, several.
SIZES = [SLOT_BYTES // 8 - 1, SLOT_BYTES // 8, SLOT_BYTES // 8 + 1, SLOT_BYTES // 3]


def _part(rank: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


# -- run by every rank ---------------------------------------------------------------------


def send_long_messages(ranks: Ranks) -> list[str]:
    """What was not as one process computes it."""
    world, wrong = ranks.world, []
    every = range(world.size)
    for size in SIZES:
        parts = [_part(rank, size) for rank in every]
        if not torch.equal(world.all_gather(parts[world.rank]), torch.stack(parts)):
            wrong.append(f"gather of {size}")
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        if not torch.equal(world.all_reduce_sum(parts[world.rank].clone()), total):
            wrong.append(f"sum of {size}")
        if not torch.equal(world.broadcast(parts[world.rank].clone(), 1), parts[1]):
            wrong.append(f"broadcast of {size}")
        send = [[(size * (2 + s + 3 * d) // 20) for d in every] for s in every]
        rows = [_part(rank + 9, sum(send[rank])) for rank in every]
        receive = world.exchange_sizes(send[world.rank])
        got = world.all_to_all_uneven(rows[world.rank], send[world.rank], receive)
        pieces = [rows[s].split(send[s])[world.rank] for s in every]
        if not torch.equal(got, torch.cat(pieces)):
            wrong.append(f"pieces of {size}")
    return wrong


def send_in_a_hurry(ranks: Ranks, rounds: int) -> int:
    """Rounds in which a rank saw another message than the one that was due."""
    world, wrong = ranks.world, 0
    random = torch.Generator().manual_seed(world.rank)
    seen = Mailbox._seen

    def seen_late(box: Mailbox, other: int, purpose: str, size: int) -> np.ndarray:
        if int(torch.randint(20, (1,), generator=random)) == 0:
            time.sleep(0.0005)  # between counting one's own message and reading another's
        return seen(box, other, purpose, size)

    with patch.object(Mailbox, "_seen", seen_late):
        for number in range(rounds):
            size = 1 + number % 7
            own = torch.full((size,), 1000 * number + world.rank)
            expected = 1000 * number + torch.arange(world.size)
            wrong += not torch.equal(world.all_gather(own), expected[:, None].expand(-1, size))
    return wrong


def overwrite_too_soon(ranks: Ranks) -> int:
    """The bug to be caught: a message is put where the last one is, which others may not have read.

    Two messages into one slot, where there should be one in each.
    """
    box = mailbox._Box
    start, slot = box._start, box.slot
    with (
        patch.object(box, "_start", lambda own, number: start(own, 0)),
        patch.object(box, "slot", lambda own, number: slot(own, 0)),
    ):
        try:
            return send_in_a_hurry(ranks, 1000)
        except RankMismatchError:
            return 1


def meet_with_the_same_bytes(ranks: Ranks) -> str:
    try:
        if ranks.world.rank == 0:
            ranks.world.all_gather(torch.zeros(4))
        else:
            ranks.world.all_reduce_sum(torch.zeros(4))
    except RankMismatchError as error:
        return str(error)
    return "no error"


def meet_with_other_kinds(ranks: Ranks) -> list[str]:
    """Numbers of another kind, and another source: as many bytes."""
    world = ranks.world
    kind = torch.int32 if world.rank else torch.float32
    with pytest.raises(RankMismatchError) as kinds:
        world.all_reduce_sum(torch.ones(4, dtype=kind))
    with pytest.raises(RankMismatchError) as sources:
        world.broadcast(torch.ones(4), source=world.rank)
    return [str(kinds.value), str(sources.value)]


def meet_with_other_sizes(ranks: Ranks) -> str:
    try:
        ranks.world.all_gather(torch.zeros(4 + ranks.world.rank))
    except RankMismatchError as error:
        return str(error)
    return "no error"


def meet_with_long_purposes(ranks: Ranks) -> str:
    """They differ behind what is told of them."""
    try:
        ranks.world.all_gather_integers("x" * 5000 + str(ranks.world.rank), [1])
    except RankMismatchError as error:
        return str(error)
    return "no error"


def meet_where_objects_are_sent(ranks: Ranks) -> str:
    """One goes over the network, where the other would never come."""
    try:
        if ranks.world.rank == 0:
            ranks.world.all_gather_object("something")
        else:
            ranks.world.barrier()
    except RankMismatchError as error:
        return str(error)
    return "no error"


def wait_for_a_gather_nobody_begins(ranks: Ranks) -> tuple[str, float]:
    world, begun, said = ranks.world, time.monotonic(), "no error"
    own = torch.zeros(3)
    try:
        if world.rank == 0:
            world.start_all_gather(own, world.gather_buffer(own)).wait()
        else:
            world.barrier()
    except RankMismatchError as error:
        said = str(error)
    return said, time.monotonic() - begun


def fork_a_child(ranks: Ranks) -> list[int]:
    """It has the boxes too; its end is not this rank's."""
    own = ranks.world.mailbox
    assert isinstance(own, Mailbox)
    child = os.fork()
    if child == 0:
        mailbox._leave(own._own, own._own.address.process)  # what is done when a process ends
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.1 * ranks.world.rank)  # longer than it takes to look after the others
    return [rank for (rank,) in ranks.world.all_gather_integers("test", [ranks.world.rank])]


def has_mailbox(ranks: Ranks) -> tuple[bool, bool, bool]:
    groups = ranks.world, ranks.data, ranks.tp
    world, data, tp = (group.mailbox for group in groups)
    return world is not None, data is not None and data is world, tp is not None and tp is world


_MEET_AND_WAIT = """
import sys, time
from auto_LiRPA_patches.sharding.collectives import start
from auto_LiRPA_patches.sharding.mesh import Mesh
ranks = start(Mesh(2, 1, int(sys.argv[1])), "gloo", 60, init_method=sys.argv[2])
ranks.world.barrier()
print("met", flush=True)
if ranks.world.rank == 1:
    time.sleep(60)
try:
    ranks.world.barrier()
except Exception as error:
    print(error, flush=True)
"""


# -- tests ---------------------------------------------------------------------------------


@worlds
def test_long_messages_arrive_as_they_were_sent(rank_pool: RankPool, world_size: int) -> None:
    for wrong in rank_pool.run(send_long_messages, world_size):
        assert wrong == []


@worlds
def test_no_message_is_read_for_another(rank_pool: RankPool, world_size: int) -> None:
    assert rank_pool.run(send_in_a_hurry, world_size, 1000) == [0] * world_size


def test_a_slot_that_is_used_again_too_soon_would_be_noticed(rank_pool: RankPool) -> None:
    try:
        wrong = sum(rank_pool.run(overwrite_too_soon, 2))
    except RankFailure as error:  # a rank was told so, and did not come to the end
        wrong = "did not follow one schedule" in str(error)
    assert wrong


def test_ranks_at_different_collectives_learn_it_whatever_their_sizes(rank_pool: RankPool) -> None:
    for message in rank_pool.run(meet_with_the_same_bytes, 2):
        said = "rank 0 at world.all_gather of torch.float32 (16 bytes), rank 1 at world.all_reduce"
        assert said in message
    for kinds, sources in rank_pool.run(meet_with_other_kinds, 2):
        assert "of torch.float32 (16 bytes), rank 1 at world.all_reduce_sum of torch.int32" in kinds
        assert "broadcast from 0 of torch.float32 (16 bytes), rank 1 at world.broad" in sources
    for message in rank_pool.run(meet_with_other_sizes, 3):
        assert "float32 (16 bytes), rank 1 at world.all_gather of torch.float32 (20" in message
    for message in rank_pool.run(meet_with_long_purposes, 2):
        assert "at the same collective" in message
    for message in rank_pool.run(meet_where_objects_are_sent, 2):
        assert "rank 0 at world.all_gather_object, rank 1 at world.barrier" in message


def test_a_rank_that_waits_on_the_network_for_one_that_waits_here_ends() -> None:
    with pytest.raises(RankFailure) as error:
        run_ranks(wait_for_a_gather_nobody_begins, 2, timeout=30)
    assert "rank 0 waits for gather 1, which has not begun here" in str(error.value) or (
        "wait_for_a_gather" not in str(error.value)
    )


def test_a_killed_rank_is_noticed_at_once(tmp_path: Path) -> None:
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", _MEET_AND_WAIT, str(rank), f"file://{tmp_path}/rendezvous"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in (0, 1)
    )
    assert first.stdout is not None
    try:
        assert first.stdout.readline() == "met\n"
        time.sleep(0.3)
        second.kill()  # the first one waits for it; nobody collects the dead process
        begun = time.monotonic()
        said = first.stdout.readline()
        assert time.monotonic() - begun < 2
        assert "rank 1 has ended" in said
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_the_end_of_a_forked_child_is_not_that_of_its_rank(rank_pool: RankPool) -> None:
    assert rank_pool.run(fork_a_child, 3) == [[0, 1, 2]] * 3


def test_groups_of_the_same_ranks_share_their_boxes(rank_pool: RankPool) -> None:
    assert rank_pool.run(has_mailbox, 2) == [(True, True, False)] * 2
    assert rank_pool.run(has_mailbox, 2, tp=2) == [(True, False, True)] * 2
    assert rank_pool.run(has_mailbox, 4, tp=2) == [(True, False, False)] * 4
    assert rank_pool.run(has_mailbox, 2, shared_memory=False) == [(False, False, False)] * 2
