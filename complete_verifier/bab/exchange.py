"""Move whole subproblems between ranks, and check that none is lost or doubled on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import SoundnessError
from auto_LiRPA_patches.sharding.collectives import Communicator

_MODULUS = 1 << 64


Batch = TypeVar("Batch", bound="Movable")


class Movable(Protocol):
    """Subproblems outside a pool: B rows in every tensor."""

    @property
    def count(self) -> int:
        """Number of subproblems B."""

    @property
    def width(self) -> int:
        """Room for what subproblems have different numbers of."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, ``[B, ...]`` each."""

    @property
    def fingerprint(self) -> int:
        """A sum modulo 2^64 over what each subproblem is."""

    def widen(self: Batch, width: int) -> Batch:
        """The same with more room."""

    def rebuilt(self: Batch, tensors: list[Tensor]) -> Batch:
        """Subproblems like these of other tensors."""

    def joined(self: Batch, other: Batch) -> Batch:
        """These, then others."""

    def select(self: Batch, index: Tensor) -> Batch:
        """The subproblems at some positions."""


def exchange(communicator: Communicator, batch: Batch, table: Sequence[Sequence[int]]) -> Batch:
    """Send subproblems to other ranks, and receive theirs. A collective.

    ========  ========================  ==================================================
    name      on each rank              meaning
    ========  ========================  ==================================================
    batch     sum(table[rank]) rows     first those for rank 0, then those for rank 1, ...
    table     R x R integers            ``[from][to]``; replicated
    returns   sum of column `rank`      from rank 0, then from rank 1, ..., bit for bit
    ========  ========================  ==================================================
    """
    if not any(any(row) for row in table):
        return batch
    like = batch.widen(communicator.agree_max(batch.width))
    receive = [row[communicator.rank] for row in table]
    packed = communicator.all_to_all_uneven(_pack(like), table[communicator.rank], receive)
    return like.rebuilt(_unpack(packed, like.tensors))


def gather(communicator: Communicator, batch: Batch) -> tuple[Batch, int]:
    """All ranks' subproblems in rank order, and where this rank's begin. A collective."""
    counts = [count for (count,) in communicator.all_gather_integers("subproblems", [batch.count])]
    first = sum(counts[: communicator.rank])
    if communicator.size == 1 or not any(counts):
        return batch, first
    like = batch.widen(communicator.agree_max(batch.width))
    return like.rebuilt(
        _unpack(communicator.all_gather_uneven(_pack(like), counts), like.tensors)
    ), first


def check_conserved(
    communicator: Communicator, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """Check that all ranks together hold what they held before a move. A collective.

    Args:
        before, after: number and fingerprint of the subproblems of this rank.

    Raises:
        SoundnessError: on all ranks. A lost subproblem would be a false proof.
    """
    rows = communicator.all_gather_integers(
        "subproblems moved", [_signed(value) for value in (*before, *after)]
    )
    totals = [sum(column) % _MODULUS for column in zip(*rows, strict=True)]
    if totals[:2] != totals[2:]:
        raise SoundnessError(
            f"branch and bound: {totals[0]} subproblems (fingerprint {totals[1]:x}) were held by "
            f"{communicator.size} rank(s) before a move, {totals[2]} ({totals[3]:x}) after it. "
            "Nothing is concluded."
        )


def _signed(value: int) -> int:
    """A number modulo 2^64 as a signed integer of 64 bits."""
    value %= _MODULUS
    return value - _MODULUS if value >= _MODULUS // 2 else value


def _row_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def _pack(batch: Movable) -> Tensor:
    """Every subproblem's bytes, ``[B, bytes]``."""
    parts = [
        tensor.contiguous().view(-1).view(torch.uint8).view(batch.count, _row_bytes(tensor))
        for tensor in batch.tensors
    ]
    return torch.cat(parts, dim=1)


def _unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the dtypes and row shapes of `like`, from ``[B, bytes]``."""
    tensors, start = [], 0
    for tensor in like:
        width = _row_bytes(tensor)
        own = packed[:, start : start + width].clone(memory_format=torch.contiguous_format)
        shape = (packed.shape[0], *tensor.shape[1:])
        tensors.append(own.view(-1).view(tensor.dtype).view(shape))
        start += width
    return tensors
