"""Collectives with an adjoint, for what is optimised over several ranks.

The loss they differentiate is the sum over all ranks of what each rank calls its loss. Every rank
calls `backward` of a graph with the same collectives in the same order. The adjoint of a gather
adds R contributions in rank order, so its bits depend on nothing but them. The adjoints of rows
begin with a vote, by which a rank that ran out of memory ends the gradient pass on all of them.

torch's own collectives let the local gradient through unreduced (measured on gloo), which would be
a wrong gradient and no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import MemoryRanOutError
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


def gather_rows_of_whole(
    communicator: Communicator, tensor: Tensor, sizes: Sequence[int]
) -> Tensor:
    """As `gather_rows`, where the gradient of the result is already summed over all ranks.

    Its adjoint takes this rank's rows of that gradient, which is the same on all ranks. No
    communication in the gradient pass.
    """
    if communicator.size == 1:
        return tensor
    rows: Tensor = _GatherRowsOfWhole.apply(tensor, communicator, tuple(sizes))
    return rows


def share_among_tiles(
    communicator: Communicator, tensors: Sequence[Tensor], tiles: Sequence[int], chunks: int
) -> list[tuple[Tensor, ...]]:
    """Give each of this rank's tiles `tensors` of its own, whose gradients are added up in order.

    ========  ===================  ============================================================
    name      on each rank         meaning
    ========  ===================  ============================================================
    tensors   [*shape] each        replicated, of one dtype; at least one
    tiles     R integers           every rank's number of tiles; replicated
    chunks    integer              aliases made, at least ``tiles[rank]``
    returns   chunks of [*shape]   aliases of `tensors`; those beyond the tiles get no gradient
    adjoint   [*shape] each        ``((g_1 + g_2) + g_3) + ...`` over the tiles of all ranks, in
                                   rank order; replicated
    ========  ===================  ============================================================

    The bits of the adjoint do not depend on how the tiles are divided among ranks.
    Communication in the gradient pass: one all-to-all of ``tiles[rank]`` times the tensors' bytes,
    and one all-gather of the tensors' bytes.
    """
    aliases = _ShareAmongTiles.apply(communicator, tuple(tiles), chunks, *tensors)
    width = len(tensors)
    return [tuple(aliases[width * number : width * (number + 1)]) for number in range(chunks)]


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
        _go_on_together(communicator)
        own = ctx.sizes[communicator.rank]
        pieces = communicator.all_to_all_uneven(grads[0], ctx.sizes, [own] * communicator.size)
        total = pieces[:own].clone()
        for rank in range(1, communicator.size):
            total += pieces[rank * own : (rank + 1) * own]
        return total, None, None


class _GatherRowsOfWhole(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, communicator: Communicator, sizes: tuple[int, ...]
    ) -> Tensor:
        ctx.start = sum(sizes[: communicator.rank])
        ctx.stop = ctx.start + sizes[communicator.rank]
        return communicator.all_gather_uneven(tensor.detach(), sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][ctx.start : ctx.stop].contiguous(), None, None


class _ShareAmongTiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, communicator: Communicator, tiles: tuple[int, ...], chunks: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.communicator, ctx.tiles = communicator, tiles
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(tensor.detach() for _ in range(chunks) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        communicator: Communicator = ctx.communicator
        _go_on_together(communicator)
        width, own = len(ctx.shapes), ctx.tiles[communicator.rank]
        columns = sum(shape.numel() for shape in ctx.shapes)
        table = grads[0].new_empty(own, columns)
        for number in range(own):
            parts = [part.flatten() for part in grads[width * number : width * (number + 1)]]
            torch.cat(parts, out=table[number])
        total = _sum_in_order(communicator, table, ctx.tiles)
        whole = total.split([shape.numel() for shape in ctx.shapes])
        shaped = (part.view(shape) for part, shape in zip(whole, ctx.shapes, strict=True))
        return None, None, None, *shaped


def _go_on_together(communicator: Communicator) -> None:
    """Hear whether a rank ran out of memory since the last exchange of this gradient pass.

    It says so by ``agree_any(True)`` in place of the exchange it would have come to next.
    """
    if communicator.agree_any(False):
        raise MemoryRanOutError(f"{communicator.name}: the gradient does not fit into memory.")


def _sum_in_order(communicator: Communicator, table: Tensor, tiles: Sequence[int]) -> Tensor:
    """Sum ``[C]`` of the rows of all ranks' ``table [tiles[rank], C]``, one after the other.

    Each rank adds up its part of the columns.
    """
    ranks, own, columns = communicator.size, table.shape[0], table.shape[1]
    part = -(-columns // ranks)
    if ranks > 1:
        padded = torch.nn.functional.pad(table, (0, part * ranks - columns))
        by_rank = padded.view(own, ranks, part).transpose(0, 1).reshape(-1, part)
        table = communicator.all_to_all_uneven(by_rank, [own] * ranks, tiles)
    total = table[0].clone() if len(table) else table.new_zeros(part)
    for row in table[1:]:
        total += row
    return communicator.all_gather(total).flatten()[:columns]


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
