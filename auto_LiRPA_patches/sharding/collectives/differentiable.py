"""Collectives with an adjoint, for what is optimised over several ranks.

The loss they differentiate is the sum over all ranks of what each rank calls its loss. Every rank
calls `backward` of a graph with the same collectives in the same order. The adjoint of a gather
adds R contributions in rank order, so its bits depend on nothing but them.

torch's own collectives let the local gradient through unreduced (measured on gloo), which would be
a wrong gradient and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.collectives.communicator import Communicator


def gather_rows(communicator: Communicator, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
    """Concatenate every rank's rows, differentiably.

    ========  ======================  ===================================================
    name      on each rank            meaning
    ========  ======================  ===================================================
    tensor    [sizes[rank], *rest]    this rank's rows; none is legal
    sizes     R integers              every rank's number of rows; replicated
    returns   [sum(sizes), *rest]     rows in rank order, bit for bit; replicated
    adjoint   [sizes[rank], *rest]    the sum over ranks of their gradients of these rows
    ========  ======================  ===================================================

    Communication: one all-gather; in the gradient pass one all-to-all of as many bytes.
    With one rank `tensor` itself is returned.
    """
    if communicator.size == 1:
        return tensor
    rows: Tensor = _GatherRows.apply(tensor, communicator, tuple(sizes))
    return rows


def sum_over_ranks(communicator: Communicator, tensor: Tensor) -> Tensor:
    """Sum of every rank's `tensor` ([*shape], partial sums), replicated, differentiably.

    Its adjoint is the same sum, of the ranks' gradients. With one rank `tensor` is returned.
    """
    if communicator.size == 1:
        return tensor
    total: Tensor = _SumOverRanks.apply(tensor, communicator)
    return total


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, communicator: Communicator, sizes: tuple[int, ...]
    ) -> Tensor:
        ctx.communicator, ctx.sizes = communicator, sizes
        return communicator.all_gather_uneven(tensor.detach(), sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        communicator: Communicator = ctx.communicator
        own = ctx.sizes[communicator.rank]
        pieces = communicator.all_to_all_uneven(grads[0], ctx.sizes, [own] * communicator.size)
        total = pieces[:own].clone()
        for rank in range(1, communicator.size):
            total += pieces[rank * own : (rank + 1) * own]
        return total, None, None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, communicator: Communicator) -> Tensor:
        ctx.communicator = communicator
        return communicator.all_reduce_sum(tensor.detach().clone(memory_format=_DENSE))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        communicator: Communicator = ctx.communicator
        return communicator.all_reduce_sum(grads[0].clone(memory_format=_DENSE)), None


_DENSE = torch.contiguous_format
