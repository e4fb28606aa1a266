"""Weights sharded over 2, 3 and 4 ranks: same bits, 1/R of the bytes, and no silent mix.

A failure means that ranks compute bounds of a network that nobody has.
"""

from __future__ import annotations

import gc
import re
import time
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.gather_packet import Header
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource, in_memory_order
from tests.distributed.ranks import RankPool

pytestmark = pytest.mark.distributed

worlds = pytest.mark.parametrize("world_size", [2, 3, 4])


def _network() -> dict[str, Tensor]:
    """Return parameters of every kind that could be cut wrongly; equal on every rank."""
    random = torch.Generator().manual_seed(5)
    base = torch.randn((6, 5, 4, 3), generator=random)
    return {
        "dividing": base[:4, :3, :1, 0].contiguous(),
        "odd": base[0, :5, :, 0].contiguous(),
        "transposed": base[0, 0].clone().T,
        "channels_last": base.to(memory_format=torch.channels_last),
        "gaps": base[1:, ::2],
        "expanded": base[0, 0, :1].expand(7, 3),
        "scalar": torch.tensor(3.5),
        "fewer_than_ranks": torch.tensor([1.0]),
        "empty": torch.zeros(0, 3),
        "double": base[0].double(),
        "half": base[1].half(),
        "integers": torch.tensor([2**62 + 1, -1, 7]),
        "booleans": torch.tensor([True, False, True, True, False]),
        # Too large for a packet on 2, 3 and 4 ranks; the second does not end on a page.
        "large": torch.randn((128, 96), generator=random),
        "large_odd": torch.randn((101, 103, 3), generator=random).permute(2, 1, 0),
        "nan_payloads": torch.tensor(
            [0x7FC00001, 0x7F800001, -0x7FFFFF, 1], dtype=torch.int32
        ).view(torch.float32),
        "signed_zeros": torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 1e-45]),
        "with_gradient": base[2].clone().requires_grad_(),
    }


def _bits(tensor: Tensor) -> list[int]:
    return in_memory_order(tensor.detach()).contiguous().view(torch.uint8).tolist()


def _soon(condition: Callable[[], bool]) -> bool:
    """Wait for what holds at once but for gloo's thread, which lets go of a buffer a bit later."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def _mismatch(act: Callable[[], object]) -> str:
    try:
        act()
    except RankMismatchError as error:
        return str(error)
    return "no error"


# -- run by every rank ---------------------------------------------------------------------


def compare_with_one_rank(ranks: Ranks, shared_memory: bool = True) -> list[str]:
    """Return the names whose gathered bits, shape, dtype or strides differ from one rank's."""
    sharded = ShardedWeights(ranks.data, shared_memory=shared_memory)
    whole = OneRankWeights()
    wrong = []
    pairs = [
        (name, sharded.register(name, tensor), whole.register(name, tensor))
        for name, tensor in _network().items()
    ]
    sharded.check_agreement()
    for name, handle, reference_handle in pairs:
        reference = whole.gather(reference_handle)
        for _ in range(2):
            weight = sharded.gather(handle)
            same = (
                weight.shape == reference.shape
                and weight.dtype == reference.dtype
                and (weight.stride() == reference.stride() or weight.numel() == 0)
                and _bits(weight) == _bits(reference)
                and not weight.requires_grad
            )
            if not same:
                wrong.append(name)
    return wrong


def account(ranks: Ranks) -> list[tuple[int, int, int]]:
    sharded = ShardedWeights(ranks.data)
    for name, tensor in _network().items():
        sharded.register(name, tensor)
    return [(part.full_numel, part.local_numel, part.local_bytes) for part in sharded.share()]


def forget_the_whole(ranks: Ranks) -> tuple[bool, int]:
    sharded = ShardedWeights(ranks.data)
    tensor = torch.ones(8, 8)
    storage = weakref.ref(tensor.untyped_storage())
    handle = sharded.register("w", tensor)
    del tensor
    gc.collect()
    gathered = sharded.gather(handle)
    buffer = weakref.ref(gathered.untyped_storage())
    del gathered
    freed = _soon(lambda: storage() is None and buffer() is None)
    return freed, sharded.local_bytes


def meter_a_gather(ranks: Ranks) -> tuple[int, int, int]:
    """Return the bytes alive before, while and after a 16 KiB weight is in use."""
    sharded = ShardedWeights(ranks.data)
    with MemoryMeter() as meter:
        handle = sharded.register("w", torch.ones(64, 64))
        before = meter.live_bytes
        weight = sharded.gather(handle)
        in_use = before + weight.nbytes
        _soon(lambda: meter.live_bytes == in_use)
        during = meter.live_bytes
        del weight
        _soon(lambda: meter.live_bytes == before)
        return before, during, meter.live_bytes


def tie_weights(ranks: Ranks) -> tuple[bool, int]:
    sharded = ShardedWeights(ranks.data)
    tensor = torch.ones(8, 8)
    same = sharded.register("a", tensor) is sharded.register("b", torch.nn.Parameter(tensor))
    return same, sharded.local_bytes


_REUSES = 64


def reuse_memory(ranks: Ranks) -> tuple[bool, list[float]]:
    """Register weights that differ only in the last rank's slice, each where the last one was."""
    sharded = ShardedWeights(ranks.data)
    addresses, handles = [], []
    for value in range(_REUSES):  # the allocator gives an address again sooner or later
        tensor = torch.zeros(64, 64)
        tensor[-1, -1] = value
        addresses.append(tensor.data_ptr())
        handles.append(sharded.register(f"w{value}", tensor))
        del tensor
    reused = len(set(addresses)) < len(addresses)
    return reused, [sharded.gather(handle)[-1, -1].item() for handle in handles]


def _ones_and_twos(source: WeightSource, twos: int) -> tuple[WeightHandle, WeightHandle]:
    return (
        source.register("ones", torch.full((4,), 1.0)),
        source.register("twos", torch.full((twos,), 2.0)),
    )


def gather_in_different_order(ranks: Ranks, twos: int) -> str:
    sharded = ShardedWeights(ranks.data, shared_memory=False)
    handles = _ones_and_twos(sharded, twos)
    return _mismatch(lambda: sharded.gather(handles[min(ranks.data.rank, 1)]))


def read_in_different_order(ranks: Ranks, twos: int, before: int) -> tuple[bool, str]:
    """Out of each other's memory: whether what is read is right, and what is said of it later."""
    sharded = ShardedWeights(ranks.data)
    ones, other = _ones_and_twos(sharded, twos)
    for _ in range(before):
        sharded.gather(ones)
    right = True

    def stray() -> None:
        nonlocal right
        handle, value = (ones, 1.0) if ranks.data.rank == 0 else (other, 2.0)
        right = bool((sharded.gather(handle) == value).all())
        for _ in range(70 - before):
            sharded.gather(ones)

    message = _mismatch(stray)
    return right, message


class _HeaderIgnored(ShardedWeights):
    """The likely bug: weights move whatever the other ranks are gathering."""

    def _check_headers(self, headers: Sequence[Header | None]) -> None:
        return None


def gather_mixed(ranks: Ranks) -> Tensor:
    careless = _HeaderIgnored(ranks.data, shared_memory=False)
    ones, twos = _ones_and_twos(careless, 4)
    return careless.gather(ones if ranks.data.rank == 0 else twos).clone()


def gather_once_more(ranks: Ranks) -> str:
    """Fall out of step by one use: rank 0 believes that a failed gather of its has succeeded."""
    sharded = ShardedWeights(ranks.data, shared_memory=False)
    ones, _ = _ones_and_twos(sharded, 4)
    sharded.gather(ones)
    if ranks.data.rank == 0:
        sharded._uses[ones.index] += 1
    return _mismatch(lambda: sharded.gather(ones))


def register_differently(ranks: Ranks, difference: str) -> tuple[str, str]:
    sharded = ShardedWeights(ranks.data)
    odd = ranks.data.rank == 1
    handle = sharded.register("a", torch.zeros(4))
    if not (odd and difference == "missing"):
        name = "c" if odd and difference == "name" else "b"
        shape = (6, 2) if odd and difference == "shape" else (3, 4)
        tensor = torch.zeros(shape)
        if odd and difference == "layout":
            tensor = torch.zeros(4, 3).T
        if odd and difference == "value":
            tensor[2, 3] = 1e-30
        sharded.register(name, tensor)
    return _mismatch(sharded.check_agreement), _mismatch(lambda: sharded.gather(handle))


def gather_on_the_data_axis(ranks: Ranks) -> list[float]:
    """Each tp position holds other weights, as tensor parallelism will have it."""
    sharded = ShardedWeights(ranks.data)
    handle = sharded.register("w", torch.arange(3.0) + 10 * ranks.mesh.tp_rank)
    return sharded.gather(handle).tolist()


# -- tests ---------------------------------------------------------------------------------


@worlds
@pytest.mark.parametrize("shared_memory", [True, False])
def test_gathered_weights_equal_one_ranks_bit_for_bit(
    rank_pool: RankPool, world_size: int, shared_memory: bool
) -> None:
    assert rank_pool.run(compare_with_one_rank, world_size, shared_memory) == [[]] * world_size


@worlds
def test_each_rank_holds_its_share_rounded_up(rank_pool: RankPool, world_size: int) -> None:
    expected = [
        (t.numel(), -(-t.numel() // world_size), -(-t.numel() // world_size) * t.element_size())
        for t in _network().values()
    ]
    assert rank_pool.run(account, world_size) == [expected] * world_size


def test_neither_the_registered_nor_the_gathered_tensor_is_kept(rank_pool: RankPool) -> None:
    assert rank_pool.run(forget_the_whole, 2) == [(True, 128)] * 2


def test_the_meter_sees_a_whole_weight_only_while_it_is_in_use(rank_pool: RankPool) -> None:
    kib = 1024
    assert rank_pool.run(meter_a_gather, 2) == [(8 * kib, (8 + 16) * kib, 8 * kib)] * 2


def test_tied_weights_are_held_once(rank_pool: RankPool) -> None:
    assert rank_pool.run(tie_weights, 2) == [(True, 128)] * 2


def test_a_freed_weights_memory_is_not_taken_for_that_weight(rank_pool: RankPool) -> None:
    # Rank 0 cannot tell by its own slice: only the life of the storage says that it is another.
    assert rank_pool.run(reuse_memory, 2) == [(True, [float(v) for v in range(_REUSES)])] * 2


def test_without_the_header_equal_shapes_mix_and_nothing_is_said(rank_pool: RankPool) -> None:
    # Guards the next test: this is what it would miss.
    for weight in rank_pool.run(gather_mixed, 2):
        assert weight.tolist() == [1.0, 1.0, 2.0, 2.0]


@worlds
@pytest.mark.parametrize("twos", [4, 100000], ids=["equal_shapes", "different_shapes"])
def test_gathers_in_different_order_end_the_run_on_every_rank(
    rank_pool: RankPool, world_size: int, twos: int
) -> None:
    for message in rank_pool.run(gather_in_different_order, world_size, twos):
        assert f"expected all {world_size} ranks to gather the same parameter" in message
        assert 'rank 0 gathers "ones" for use 1, rank 1 gathers "twos" for use 1' in message


@worlds
@pytest.mark.parametrize("before", [0, 3, 63])
def test_ranks_that_read_in_different_order_learn_of_it_soon(
    rank_pool: RankPool, world_size: int, before: int
) -> None:
    for right, message in rank_pool.run(read_in_different_order, world_size, 100, before):
        assert right, "weights were mixed"
        assert f'rank 0 gathers "ones" for use {before + 1}, rank 1 gathers "twos" for' in message


def test_a_use_counter_out_of_step_ends_the_run(rank_pool: RankPool) -> None:
    for message in rank_pool.run(gather_once_more, 2):
        assert 'rank 0 gathers "ones" for use 3, rank 1 gathers "ones" for use 2' in message


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ("name", r'"b \[3, 4\] torch.float32 \[4, 1\].*" on rank 0 and "c \[3, 4\] torch'),
        ("shape", r'"b \[3, 4\] torch.float32 \[4, 1\].*" on rank 0 and "b \[6, 2\] torch'),
        ("layout", r'"b \[3, 4\] .* \[4, 1\] .*" on rank 0 and "b \[3, 4\] .* \[1, 3\] .*"'),
        ("missing", r'"b \[3, 4\] torch.float32 \[4, 1\].*" on rank 0 and missing on rank 1'),
        ("value", r'"b .* sha256 17b0761f87b081d5" on rank 0 and "b .* sha256 [0-9a-f]{16}" on'),
    ],
)
def test_ranks_with_different_parameters_are_told_the_first_difference(
    rank_pool: RankPool, difference: str, text: str
) -> None:
    for on_check, on_gather in rank_pool.run(register_differently, 2, difference):
        assert re.search(f"number 1 is {text}", on_check), on_check
        assert on_gather == on_check


def test_weights_are_shared_along_the_data_axis_only(rank_pool: RankPool) -> None:
    assert rank_pool.run(gather_on_the_data_axis, 4, tp=2) == [
        [0.0, 1.0, 2.0],
        [10.0, 11.0, 12.0],
        [0.0, 1.0, 2.0],
        [10.0, 11.0, 12.0],
    ]
