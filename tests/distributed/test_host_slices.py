"""Slices read from other ranks' memory: the right bytes, nothing mapped, and a way back.

A failure means bounds of a network that nobody has, or ranks that can't agree on how to gather.
"""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from auto_LiRPA_patches.errors import MemoryRanOutError, RankMismatchError, RanksDisagreeError
from auto_LiRPA_patches.sharding import host_slices
from auto_LiRPA_patches.sharding.added_weights import AddedWeights
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.host_slices import HostSlices
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from tests.distributed.ranks import RankPool

pytestmark = pytest.mark.distributed

SIZES = [5000, 1, 4096, 70001]
SPANNED = [16384, 10000, 10000, 40000, 3]  # of 16384 numbers each


# -- run by every rank ---------------------------------------------------------------------


def read_all(ranks: Ranks) -> list[bool]:
    """Slices of odd sizes, one of them registered after the ranks met."""
    host = HostSlices(ranks.data)
    placed, found = [], []
    for index, size in enumerate(SIZES):
        part = host.place(index, size, torch.float64)
        assert part is not None and not part.any()
        part.copy_(torch.arange(size) + 1e6 * ranks.data.rank)
        placed.append(part)
        if index == 2:
            found.append(host.meet())
    found.append(host.meet())
    ranks.data.barrier()  # the last one is filled
    for index, size in enumerate(SIZES):
        into = host.read(index, torch.empty(ranks.data.size, size, dtype=torch.float64))
        expected = torch.arange(size) + 1e6 * torch.arange(ranks.data.size).unsqueeze(1)
        found.append(torch.equal(into, expected))
    return found


def fill_spans(ranks: Ranks) -> list[bool]:
    """Slices that fill a span, do not fit into what is left of one, and are larger than one."""
    host_slices._SPAN_BYTES, usual = 1 << 16, host_slices._SPAN_BYTES
    try:
        host = HostSlices(ranks.data)
        for index, size in enumerate(SPANNED):
            part = host.place(index, size, torch.float32)
            assert part is not None
            part.fill_(10.0 * index + ranks.data.rank)
    finally:
        host_slices._SPAN_BYTES = usual
    assert host.meet()
    found = []
    for index, size in enumerate(SPANNED):
        rows = host.read(index, torch.empty(ranks.data.size, size))
        found.append(all(bool((row == 10.0 * index + r).all()) for r, row in enumerate(rows)))
    ranks.data.barrier()
    return found


def gather_without(ranks: Ranks, what: str) -> tuple[bool, bool]:
    """One rank cannot be read, or cannot read: whether weights are right, and how they came."""
    is_odd = ranks.data.rank == 1
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(1))
    source = ShardedWeights(ranks.data)
    host = source._host
    assert host is not None
    opened, made = host_slices.open_file, os.posix_fallocate

    def refuse(*_: object) -> None:
        raise OSError(28, "no space left on device")

    try:
        if is_odd and what == "no file":
            host._file = None
        if is_odd and what == "no space":
            os.posix_fallocate = refuse
        if is_odd and what == "not allowed":
            host_slices.open_file = lambda address: None
        if is_odd and what == "another host":  # where that number is another process's file
            assert host._address is not None
            host._address = replace(host._address, secret=bytes(16))
        handle = source.register("w", weight)
        same = torch.equal(source.gather(handle), weight)
    finally:
        host_slices.open_file, os.posix_fallocate = opened, made
    return same, host._peers is not None


def gather_apart(ranks: Ranks) -> list[bool]:
    """Each rank gathers in an order of its own, some ranks nothing at all; then all in step."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(64, 40 + 8 * index, generator=generator) for index in range(3)]
    source = AddedWeights(ShardedWeights(ranks.data, prefetch=True))
    handles = [source._base.register(f"w{index}", own) for index, own in enumerate(weights[:2])]
    handles.append(source.register("added", weights[2]))
    found = [source.may_part()]
    with source.apart():
        for number in range(40 * ranks.data.rank):  # more than what calls for a comparison
            index = (number * (1 + ranks.data.rank)) % 3
            found.append(torch.equal(source.gather(handles[index]), weights[index]))
    for handle, own in zip(handles, weights, strict=True):
        found.append(torch.equal(source.gather(handle), own))
    source.settle()
    return found


def part_where_it_is_not_possible(ranks: Ranks) -> list[str]:
    """Without shared memory; then of a weight that is registered too late."""
    told = []
    sending, reading = (ShardedWeights(ranks.data, shared_memory=way) for way in (False, True))
    for source in (sending, reading):
        source.register("w", torch.ones(30, 20))
    assert not sending.may_part() and reading.may_part()
    try:
        with sending.apart():
            pass
    except ValueError as error:
        told.append(str(error))
    try:
        with reading.apart():
            reading.gather(reading.register("late", torch.ones(20, 20)))
    except ValueError as error:
        told.append(str(error))
    return told


def leave_the_others_afterwards(ranks: Ranks) -> str:
    """What is not noticed apart is noticed again in step."""
    source = ShardedWeights(ranks.data)
    handles = [source.register(name, torch.ones(30, 20)) for name in ("one", "other")]
    with source.apart():
        source.gather(handles[ranks.data.rank % 2])
    source.gather(handles[ranks.data.rank % 2])
    try:
        source.settle()
    except RanksDisagreeError as error:
        return str(error)
    return "no error"


def run_out_afterwards(ranks: Ranks) -> str:
    host = HostSlices(ranks.data)
    assert host.meet()

    def refuse(*_: object) -> None:
        raise OSError(28, "no space left on device")

    made, os.posix_fallocate = os.posix_fallocate, refuse
    try:
        host.place(0, 5000, torch.float32)
    except MemoryRanOutError as error:
        return str(error)
    finally:
        os.posix_fallocate = made
    return "no error"


def hold_other_networks(ranks: Ranks) -> str:
    host = HostSlices(ranks.data)
    host.place(0, 5000, torch.float32)
    if ranks.data.rank == 0:
        host.place(1, 5000, torch.float32)
    host.meet()
    if ranks.data.rank == 1:
        return ""
    try:
        host.read(1, torch.empty(ranks.data.size, 5000))
    except RankMismatchError as error:
        return str(error)
    return "no error"


def files_and_memory(ranks: Ranks) -> tuple[int, int, int, dict[str, int]]:
    """Files held for 40 weights and afterwards, KiB of resident slices, what the meter counts."""
    gc.collect()  # files of networks that earlier tests of this process left in reference cycles
    before = _files()
    with MemoryMeter() as meter:
        source = ShardedWeights(ranks.data)
        handles = [source.register(f"w{i}", torch.full((50_000,), 1.0 + i)) for i in range(40)]
        for handle in handles:
            source.gather(handle)
        during = _files() - before
        resident = _resident_slices()
        meter.mark_baseline()
    counted = {kind.value: count for kind, count in meter.baseline_by_kind.items() if count}
    del source
    return during, resident, _files() - before, counted


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_slices() -> int:
    """KiB of slices, its own and others', that are in this process's resident memory."""
    resident, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counts = "abcrown-weights" in line
        elif counts and line.startswith("Rss:"):
            resident += int(line.split()[1])
    return resident


# -- tests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_reads_every_ranks_bytes(rank_pool: RankPool, world_size: int) -> None:
    expected = [True] * (2 + len(SIZES))
    assert rank_pool.run(read_all, world_size) == [expected] * world_size


@pytest.mark.parametrize("what", ["no file", "no space", "not allowed", "another host"])
def test_where_one_rank_cannot_all_send(rank_pool: RankPool, what: str) -> None:
    assert rank_pool.run(gather_without, 3, what) == [(True, False)] * 3


def test_where_nothing_is_wrong_all_read(rank_pool: RankPool) -> None:
    """Guards the test above, which would pass if nobody ever read."""
    assert rank_pool.run(gather_without, 3, "nothing") == [(True, True)] * 3


def test_memory_that_runs_out_later_is_an_error(rank_pool: RankPool) -> None:
    for message in rank_pool.run(run_out_afterwards, 2):
        assert "no memory for 20000 bytes of weights" in message


def test_a_rank_with_fewer_slices_is_noticed(rank_pool: RankPool) -> None:
    message = rank_pool.run(hold_other_networks, 2)[0]
    assert "parameter number 1 in the memory of rank 1 at" in message


def test_only_own_slices_are_resident_and_nothing_stays_open(rank_pool: RankPool) -> None:
    own = 40 * 100_000
    for during, resident, after, counted in rank_pool.run(files_and_memory, 2):
        assert during == 4  # its file, the mapping's, and each rank's for reading
        assert own <= 1024 * resident <= 1.1 * own
        assert after == 0
        assert counted == {MemoryKind.WEIGHTS.value: own}


def test_slices_beyond_one_span(rank_pool: RankPool) -> None:
    for found in rank_pool.run(fill_spans, 2):
        assert found == [True] * len(SPANNED)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_that_part_each_gather_what_they_like(rank_pool: RankPool, world_size: int) -> None:
    for rank, found in enumerate(rank_pool.run(gather_apart, world_size)):
        assert len(found) == 40 * rank + 4 and all(found)


def test_ranks_that_cannot_part_are_told(rank_pool: RankPool) -> None:
    for sending, late in rank_pool.run(part_where_it_is_not_possible, 2):
        assert "cannot part" in sending and "'late' was registered while" in late


def test_a_rank_that_strays_once_all_are_together_again_is_noticed(rank_pool: RankPool) -> None:
    for told in rank_pool.run(leave_the_others_afterwards, 3):
        assert 'rank 0 gathers "one" for use 1, rank 1 gathers "other" for use 1' in told
