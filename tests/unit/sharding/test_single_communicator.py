"""A group of one: same interface, same refusals, no process group and no copy."""

from __future__ import annotations

import pytest
import torch

from auto_LiRPA_patches.sharding.collectives import (
    Communicator,
    Ranks,
    gather_rows,
    start,
    stop,
    sum_over_ranks,
)
from auto_LiRPA_patches.sharding.mesh import Mesh, MeshError


def test_tensor_collectives_return_the_tensor_without_a_copy() -> None:
    single = Communicator.single()
    tensor = torch.arange(6.0).view(2, 3)
    assert single.all_reduce_sum(tensor) is tensor
    assert single.broadcast(tensor) is tensor
    assert single.all_gather_uneven(tensor, [2]) is tensor
    gathered = single.all_gather(tensor)
    assert gathered.shape == (1, 2, 3)
    assert gathered.data_ptr() == tensor.data_ptr()
    buffer = single.gather_buffer(tensor)
    assert buffer.data_ptr() == tensor.data_ptr()
    assert single.start_all_gather(tensor, buffer).wait() is buffer
    assert single.exchange_sizes([2]) == [2]
    assert single.all_to_all_uneven(tensor, [2], [2]) is tensor


def test_differentiable_collectives_return_the_tensor_itself() -> None:
    single = Communicator.single()
    tensor = torch.ones(2, 3, requires_grad=True)
    assert gather_rows(single, tensor, [2]) is tensor
    assert sum_over_ranks(single, tensor) is tensor


def test_metadata_collectives_return_what_they_were_given() -> None:
    single = Communicator.single()
    assert single.all_gather_integers("test", [3, -4]) == [(3, -4)]
    assert single.all_gather_object({"a": 1}) == [{"a": 1}]
    assert single.broadcast_object("x") == "x"
    assert (single.agree_max(5), single.agree_min(5)) == (5, 5)
    assert single.agree_any(True) and not single.agree_any(False)
    assert single.agree_all(True) and not single.agree_all(False)
    single.agree_same("hash", "abc")
    single.barrier()


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce_sum", "broadcast"])
def test_a_tensor_with_gradient_is_refused_as_with_many_ranks(operation: str) -> None:
    tensor = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match=f"single.{operation}: expected a tensor without gradient"):
        getattr(Communicator.single(), operation)(tensor)


@pytest.mark.parametrize("operation", ["all_reduce_sum", "broadcast"])
def test_writing_to_a_tensor_with_gaps_is_refused(operation: str) -> None:
    with pytest.raises(ValueError, match="expected a contiguous tensor"):
        getattr(Communicator.single(), operation)(torch.zeros(4, 4)[:, :2])


def test_uneven_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fit rank 0's 2 rows, got \[3\]"):
        Communicator.single().all_gather_uneven(torch.zeros(2, 3), [3])


def test_a_world_of_one_starts_no_process_group() -> None:
    ranks = start(Mesh.one_rank())
    assert ranks == Ranks(ranks.mesh, ranks.world, ranks.data, ranks.tp)
    assert [c.size for c in (ranks.world, ranks.data, ranks.tp)] == [1, 1, 1]
    assert not torch.distributed.is_initialized()  # noqa: TID251  the claim itself
    stop()  # nothing to leave, no error


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(MeshError, match="expected auto, nccl or gloo, got 'mpi'"):
        start(Mesh.one_rank(), "mpi")  # type: ignore[arg-type]
