"""Tensors that ranks exchange, without gradient.

Choices, from what gloo was measured to do: an all-gather with unequal sizes aborts the process,
so `all_gather_uneven` pads; SUM is the only reduction; maxima are taken from gathered integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from auto_LiRPA_patches.sharding.collectives.group import Group, all_gather_single, memory_of
from auto_LiRPA_patches.sharding.collectives.metadata import MetadataGroup


class Communicator(MetadataGroup):
    """One group of ranks along one axis, as the rank that holds this object sees it."""

    @classmethod
    def single(cls, name: str = "single") -> Communicator:
        """Return the group of one rank: every method returns at once, without torch.distributed."""
        return cls(name, 1, 0, None)

    def gather_buffer(self, tensor: Tensor) -> Tensor:
        """Return the uninitialised [R, *shape] that `all_gather(tensor)` fills.

        Apart from `all_gather` so that a caller can run out of memory before any rank waits for
        it. With one rank the buffer is a view of `tensor` and needs no filling.
        """
        if self._group is None:
            return tensor.unsqueeze(0)
        return tensor.new_empty((self._size, *tensor.shape))

    def all_gather(self, tensor: Tensor, into: Tensor | None = None) -> Tensor:
        """Stack one equally shaped tensor from every rank.

        ========  ==============  ==================================================
        name      on each rank    meaning
        ========  ==============  ==================================================
        tensor    [*shape]        this rank's part; same shape and dtype on all ranks
        into      [R, *shape]     from `gather_buffer(tensor)`; made here if None
        returns   [R, *shape]     row r is rank r's part, bit for bit; replicated
        ========  ==============  ==================================================

        With one rank the result is a view of `tensor`.
        """
        self._refuse_gradient("all_gather", tensor)
        gathered = self.gather_buffer(tensor) if into is None else into
        if self._group is not None and tensor.numel() > 0:
            source, target = memory_of(tensor.contiguous()), memory_of(gathered)
            mailbox = self._mail(tensor)
            with self._collective("all_gather"):
                if mailbox is None:
                    all_gather_single(target, source, group=self._group)
                else:
                    mailbox.all_gather(self._purpose("all_gather", tensor), source, target)
        return gathered

    def start_all_gather(self, tensor: Tensor, into: Tensor) -> PendingGather:
        """Begin `all_gather` and return at once; all ranks begin it in the same order.

        Args:
            tensor: [*shape], contiguous; not written to until the result has been waited for.
            into: [R, *shape] from `gather_buffer(tensor)`; undefined until then.
        """
        self._refuse_gradient("all_gather", tensor)
        self._refuse_gaps("all_gather", tensor)
        work = None
        if self._group is not None and tensor.numel() > 0:
            source, target = memory_of(tensor), memory_of(into)
            with self._collective("all_gather.start"):
                work = all_gather_single(target, source, group=self._group, async_op=True)
        number = 0 if work is None or self._mailbox is None else self._mailbox.begin_gather()
        return PendingGather(self, into, work, number)

    def all_gather_uneven(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate tensors of different length along dim 0.

        ========  ======================  ==========================================
        name      on each rank            meaning
        ========  ======================  ==========================================
        tensor    [sizes[rank], *rest]    this rank's rows; none is legal
        sizes     R integers              every rank's number of rows; replicated
        returns   [sum(sizes), *rest]     rows in rank order, bit for bit; replicated
        ========  ======================  ==========================================

        Padded to the longest part while travelling: R * max(sizes) rows are received.
        """
        self._check_sizes("all_gather_uneven", tensor, sizes, sizes[self._rank : self._rank + 1])
        self._refuse_gradient("all_gather_uneven", tensor)
        if self._group is None:
            return tensor
        longest = max(sizes)
        padded = tensor
        if tensor.shape[0] < longest:
            padded = tensor.new_zeros((longest, *tensor.shape[1:]))
            padded[: tensor.shape[0]] = tensor
        gathered = self.all_gather(padded)
        return torch.cat([gathered[r, :size] for r, size in enumerate(sizes)])

    def exchange_sizes(self, send: Sequence[int]) -> list[int]:
        """Return how many rows each rank sends to this one, given how many this one sends to each.

        Args:
            send: R integers; number r goes to rank r.
        """
        if self._group is None:
            return list(send)
        return [row[self._rank] for row in self._table(send)]

    def all_to_all_uneven(
        self, tensor: Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> Tensor:
        """Send consecutive pieces of rows to every rank, and receive theirs.

        ========  ======================  =================================================
        name      on each rank            meaning
        ========  ======================  =================================================
        tensor    [sum(send), *rest]      rows for rank 0, then for rank 1, ...
        send      R integers              rows for each rank; zero is legal
        receive   R integers              rows from each rank, as `exchange_sizes` tells
        returns   [sum(receive), *rest]   rows from rank 0, then from rank 1, ..., bit for bit
        ========  ======================  =================================================
        """
        self._check_sizes("all_to_all_uneven", tensor, send, send)
        self._check_sizes("all_to_all_uneven", None, receive, receive)
        self._refuse_gradient("all_to_all_uneven", tensor)
        if self._group is None:
            return tensor
        received = tensor.new_empty((sum(receive), *tensor.shape[1:]))
        width = _row_bytes(tensor)
        mailbox = self._mail(tensor)
        if width > 0 and mailbox is not None:
            table = [[rows * width for rows in row] for row in self._table(send)]
            with self._collective("all_to_all_uneven"):
                mailbox.all_to_all(
                    self._purpose("all_to_all_uneven", tensor),
                    memory_of(tensor.contiguous()),
                    table,
                    memory_of(received),
                )
        elif width > 0:
            with self._collective("all_to_all_uneven"):
                dist.all_to_all_single(
                    memory_of(received).view(-1, width),
                    memory_of(tensor.contiguous()).view(-1, width),
                    list(receive),
                    list(send),
                    group=self._group,
                )
        return received

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Add `tensor` ([*shape], partial sum) over all ranks in place; return it, replicated.

        All ranks get the same bits; the bits depend on R and on the number of elements.
        """
        self._refuse_gradient("all_reduce_sum", tensor)
        self._refuse_gaps("all_reduce_sum", tensor)
        if self._group is not None and tensor.numel() > 0:
            mailbox = self._mail(tensor)
            with self._collective("all_reduce_sum"):
                if mailbox is None:
                    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self._group)
                else:
                    purpose = self._purpose("all_reduce_sum", tensor)
                    mailbox.all_reduce_sum(purpose, tensor.view(-1))
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite `tensor` ([*shape]) with that of group rank `source`, and return it."""
        self._refuse_gradient("broadcast", tensor)
        self._refuse_gaps("broadcast", tensor)
        if self._group is not None and tensor.numel() > 0:
            memory = memory_of(tensor)
            mailbox = self._mail(tensor)
            with self._collective("broadcast"):
                if mailbox is None:
                    dist.broadcast(memory, group_src=source, group=self._group)
                else:
                    purpose = self._purpose(f"broadcast from {source}", tensor)
                    mailbox.broadcast(purpose, memory, source)
        return tensor

    # -- private ---------------------------------------------------------------------------

    def _purpose(self, operation: str, tensor: Tensor) -> str:
        """What ranks have to agree on, beside the number of bytes."""
        return f"{self._name}.{operation} of {tensor.dtype}"

    def _table(self, send: Sequence[int]) -> list[list[int]]:
        """What each rank sends to each, ``[from][to]``."""
        table: list[list[int]] = self.all_gather(torch.tensor(send, dtype=torch.int64)).tolist()
        return table

    def _check_sizes(
        self, operation: str, tensor: Tensor | None, sizes: Sequence[int], own: Sequence[int]
    ) -> None:
        """Refuse sizes that are not one per rank, or whose `own` do not add up to the rows."""
        rows = sum(own) if tensor is None else int(tensor.shape[0])
        if len(sizes) != self._size or sum(own) != rows or min(sizes) < 0:
            raise ValueError(
                f"{self._name}.{operation}: expected {self._size} sizes that fit rank "
                f"{self._rank}'s {rows} rows, got {list(sizes)}"
            )

    def _refuse_gradient(self, operation: str, tensor: Tensor) -> None:
        # Also with one rank: code that works there must not lose gradients with two.
        if tensor.requires_grad:
            raise ValueError(
                f"{self._name}.{operation}: expected a tensor without gradient, got one of shape "
                f"{tuple(tensor.shape)} that requires grad; this collective carries no gradient. "
                "Detach it, or use gather_rows or sum_over_ranks, which have an adjoint."
            )

    def _refuse_gaps(self, operation: str, tensor: Tensor) -> None:
        if not tensor.is_contiguous():
            raise ValueError(
                f"{self._name}.{operation}: expected a contiguous tensor, got shape "
                f"{tuple(tensor.shape)} with strides {tensor.stride()}. Call contiguous() first."
            )


class PendingGather:
    """An all-gather on its way; whoever started it waits for it, wanted or not."""

    def __init__(self, group: Group, into: Tensor, work: Any | None, number: int) -> None:
        self._group = group
        self._into = into
        self._work = work
        self._number = number

    def wait(self) -> Tensor:
        """Return the filled buffer [R, *shape].

        Raises:
            RankMismatchError: it took longer than the timeout, or a peer is lost.
        """
        if self._work is not None:
            work, self._work = self._work, None
            mailbox = self._group._mailbox
            waiting = nullcontext() if mailbox is None else mailbox.waiting_for(self._number)
            with self._group._collective("all_gather.wait"), waiting:
                work.wait()
        return self._into


def _row_bytes(tensor: Tensor) -> int:
    elements = 1
    for size in tensor.shape[1:]:
        elements *= size
    return elements * tensor.element_size()
