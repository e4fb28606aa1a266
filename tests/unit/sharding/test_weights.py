"""Registering and gathering on one rank, for both sources.

A failure means that an operator would compute with another weight than the network's.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource, same_bits


def _sharded_alone() -> ShardedWeights:
    return ShardedWeights(Communicator.single())


both_sources = pytest.mark.parametrize("make", [OneRankWeights, _sharded_alone])
MakeSource = Callable[[], WeightSource]


@both_sources
def test_a_gathered_weight_has_the_registered_bits_and_no_gradient(make: MakeSource) -> None:
    tensor = torch.randn(3, 5, requires_grad=True)
    source = make()
    weight = source.gather(source.register("w", tensor))
    assert torch.equal(weight, tensor)
    assert not weight.requires_grad


@both_sources
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t,
        lambda t: t.transpose(0, 1),
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t[:, :1],
        lambda t: t[1:, ::2],
        lambda t: t[:1].expand(4, -1, -1, -1),
        lambda t: t[:0],
        lambda t: t[0, 0, 0, 0],
    ],
    ids=["plain", "transposed", "channels_last", "narrow", "gaps", "expanded", "empty", "scalar"],
)
def test_values_shape_and_dense_strides_survive(
    make: MakeSource, layout: Callable[[Tensor], Tensor]
) -> None:
    tensor = layout(torch.randn(4, 6, 3, 2))
    source = make()
    weight = source.gather(source.register("w", tensor))
    assert torch.equal(weight, tensor)
    # clone() keeps strides by the rule that gather promises
    assert weight.stride() == tensor.clone().stride() or tensor.numel() == 0


@both_sources
def test_the_same_memory_registered_twice_exists_once(make: MakeSource) -> None:
    tensor = torch.randn(4, 4)
    source = make()
    first = source.register("tied.0", tensor)
    assert source.register("tied.1", torch.nn.Parameter(tensor)) is first
    assert source.local_bytes == source.full_bytes == 64


@both_sources
def test_other_views_of_the_same_memory_are_other_weights(make: MakeSource) -> None:
    tensor = torch.arange(16.0).view(4, 4)
    source = make()
    handles = [
        source.register("whole", tensor),
        source.register("transposed", tensor.T),
        source.register("top", tensor[:2]),
        source.register("bottom", tensor[2:]),
    ]
    assert len(set(handles)) == 4
    for handle, expected in zip(handles, (tensor, tensor.T, tensor[:2], tensor[2:]), strict=True):
        assert torch.equal(source.gather(handle), expected)


def test_memory_used_again_after_being_freed_is_a_new_weight() -> None:
    # One address, as an allocator may hand it out again at once; only the storage's life tells.
    source = _sharded_alone()
    memory = np.empty((64, 64), dtype=np.float32)
    handles, addresses = [], set()
    for value in range(8):
        memory.fill(value)
        tensor = torch.from_numpy(memory)
        addresses.add(tensor.data_ptr())
        handles.append(source.register(f"w{value}", tensor))
        del tensor
    assert len(addresses) == 1
    for value, handle in enumerate(handles):
        assert torch.equal(source.gather(handle), torch.full((64, 64), float(value)))


def test_memory_written_to_since_is_a_new_weight() -> None:
    source = _sharded_alone()
    buffer = torch.zeros(4)
    first = source.register("first", buffer)
    buffer.fill_(1.0)
    second = source.register("second", buffer)
    assert source.gather(first).tolist() == [0.0] * 4
    assert source.gather(second).tolist() == [1.0] * 4


def test_a_sharded_source_keeps_no_reference_to_the_tensor() -> None:
    source = _sharded_alone()
    tensor = torch.randn(8)
    storage = weakref.ref(tensor.untyped_storage())
    source.register("w", tensor)
    del tensor
    gc.collect()
    assert storage() is None


def test_one_rank_weights_share_memory_with_the_module() -> None:
    source = OneRankWeights()
    tensor = torch.randn(8)
    assert source.gather(source.register("w", tensor)).data_ptr() == tensor.data_ptr()


def test_gathering_alone_copies_nothing() -> None:
    source = _sharded_alone()
    handle = source.register("w", torch.randn(8))
    assert source.gather(handle).data_ptr() == source.gather(handle).data_ptr()


@both_sources
def test_share_lists_every_parameter(make: MakeSource) -> None:
    source = make()
    source.register("w", torch.zeros(3, 5))
    source.register("n", torch.zeros(2, dtype=torch.int64))
    assert [
        (p.name, p.shape, p.full_numel, p.local_numel, p.local_bytes) for p in source.share()
    ] == [("w", (3, 5), 15, 15, 60), ("n", (2,), 2, 2, 16)]
    assert source.full_bytes == source.local_bytes == 76


@both_sources
def test_one_name_for_two_tensors_is_refused(make: MakeSource) -> None:
    source = make()
    kept = torch.zeros(2)
    source.register("w", kept)
    with pytest.raises(ValueError, match=r"weight 'w': already registered .* shape \(3,\)"):
        source.register("w", torch.zeros(3))


@both_sources
def test_a_handle_of_another_source_is_refused(make: MakeSource) -> None:
    source, other = make(), make()
    source.register("w", torch.zeros(2))
    foreign = other.register("v", torch.zeros(2))
    with pytest.raises(ValueError, match="weight 'v' .*expected a handle given out by this source"):
        source.gather(foreign)


def test_digest_tells_names_shapes_dtypes_and_layouts_apart() -> None:
    tensors = {
        "base": ("w", torch.zeros(2, 4)),
        "name": ("v", torch.zeros(2, 4)),
        "shape": ("w", torch.zeros(4, 2)),
        "dtype": ("w", torch.zeros(2, 4, dtype=torch.float64)),
        "layout": ("w", torch.zeros(4, 2).T),
    }
    digests = set()
    for name, tensor in tensors.values():
        source = OneRankWeights()
        source.register(name, tensor)
        digests.add(source.digest)
    assert len(digests) == len(tensors)


def test_same_bits_sees_what_equality_does_not() -> None:
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
