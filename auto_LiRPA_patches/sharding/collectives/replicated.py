"""Collectives with an adjoint, for a loss that every rank of the group computes alike.

Where ranks hold slices of a layer, what follows from all of it is replicated, the loss too; it
counts once. So the gradient of something replicated is replicated, and that of a rank's part is
this rank's alone. (`differentiable` is for losses that differ and are added over ranks.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.collectives.communicator import Communicator


def total_of_parts(communicator: Communicator, tensor: Tensor) -> Tensor:
    """Sum of every rank's `tensor` ([*shape], partial sums), replicated.

    Its adjoint hands the gradient on as it is: each part enters the sum once. Communication: one
    all-reduce, none in the gradient pass. With one rank `tensor` is returned.
    """
    if communicator.size == 1:
        return tensor
    total: Tensor = _TotalOfParts.apply(tensor, communicator)
    return total


def own_columns(communicator: Communicator, tensor: Tensor, start: int, stop: int) -> Tensor:
    """Columns ``start <= n < stop`` of a replicated ``[B, N]``, different ones on every rank.

    The adjoint puts every rank's gradient of its columns together. Communication: none; one
    all-reduce of ``[B, N]`` in the gradient pass. With one rank they are a view.
    """
    if communicator.size == 1:
        return tensor[:, start:stop]
    columns: Tensor = _OwnColumns.apply(tensor, communicator, start, stop)
    return columns


def of_first_rank(communicator: Communicator, tensor: Tensor) -> Tensor:
    """`tensor` ([*shape], replicated up to rounding) as rank 0 has it, bit for bit.

    Ranks of different make may round differently, and what is decided by such a number must be
    decided alike. Its adjoint hands the gradient on as it is. Communication: one broadcast, none in
    the gradient pass. With one rank `tensor` is returned.
    """
    if communicator.size == 1:
        return tensor
    first: Tensor = _OfFirstRank.apply(tensor, communicator)
    return first


class _TotalOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, communicator: Communicator) -> Tensor:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return communicator.all_reduce_sum(copy)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _OfFirstRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, communicator: Communicator) -> Tensor:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return communicator.broadcast(copy)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _OwnColumns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, communicator: Communicator, start: int, stop: int
    ) -> Tensor:
        ctx.communicator, ctx.shape, ctx.columns = communicator, tensor.shape, (start, stop)
        return tensor[:, start:stop].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        start, stop = ctx.columns
        whole = grads[0].new_zeros(ctx.shape)
        whole[:, start:stop] = grads[0]
        communicator: Communicator = ctx.communicator
        return communicator.all_reduce_sum(whole), None, None, None
