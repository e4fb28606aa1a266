"""Weights held as one slice per rank, and gathered for the duration of one operator call (FSDP).

Shapes (R ranks on the axis, n elements in the parameter, c = ceil(n / R)):

    name       on each rank    meaning
    slice      [c]             elements [rank*c, rank*c + c) in memory order; zeros past n
    gathered   [R * c]         fresh buffer; its first n elements, shaped, are the weight

Communication: each gather is one all-gather of three integers and one of c elements. Nothing is
computed with the data, so a gathered weight equals the registered one bit for bit.

Why the integers (the header: handle index, use counter, registry digest). Two ranks that gather
equally shaped weights in different order receive mixed weights without any error, and the bounds
computed from them prove something about no network at all. Weights of different size are no
better: gloo aborts the process from a background thread. The header therefore travels ahead, in a
collective whose size never varies, and no weight moves until every rank's header is the same.
Appending it to the slice was rejected: it arrives only if the sizes match, and it costs a copy.

Its cost, measured on two gloo ranks of one thread each on a busy 2-core host (least of 400 and of
12 gathers): 0.5 ms on top of 0.4 ms for a 256x256 float32 weight, lost in the noise beside
420-510 ms for 4096x4096. One tiny all-gather alone takes 0.3 ms there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.weights import (
    ParameterShare,
    WeightHandle,
    WeightSource,
    dense_strides,
    in_memory_order,
    same_bits,
)

_DIGEST_HEX_DIGITS = 15  # 60 bits, so that it fits a signed 64-bit integer


class ShardedWeights(WeightSource):
    """Keep 1/R of every parameter; no reference to a registered tensor survives `register`."""

    def __init__(self, communicator: Communicator) -> None:
        """Share weights over `communicator`, normally the data axis.

        All its ranks must register and gather in the same order.
        """
        super().__init__()
        self._communicator = communicator
        self._slices: list[Tensor] = []
        self._strides: list[tuple[int, ...]] = []
        self._uses: list[int] = []

    def gather(self, handle: WeightHandle) -> Tensor:
        """Assemble the weight in a fresh buffer; collective over the communicator.

        With one rank the slice is the whole, and is returned without a copy.

        Raises:
            RankMismatchError: on every rank, if some rank gathers another parameter, has gathered
                this one another number of times, or registered other parameters.
        """
        self._check_mine(handle)
        part = self._slices[handle.index]
        # Memory first: a rank that finds none has not yet made any other rank wait for it.
        buffer = self._communicator.gather_buffer(part)
        self._check_same_gather(handle)
        flat = self._communicator.all_gather(part, into=buffer).view(-1)
        self._uses[handle.index] += 1
        return flat.as_strided(handle.shape, self._strides[handle.index])

    def share(self) -> tuple[ParameterShare, ...]:
        """Return this rank's padded slices."""
        return tuple(
            ParameterShare(
                name=handle.name,
                shape=handle.shape,
                full_numel=_numel(handle.shape),
                local_numel=part.numel(),
                local_bytes=part.nbytes,
            )
            for handle, part in zip(self._handles, self._slices, strict=True)
        )

    def empty_like(self) -> ShardedWeights:
        """Return a source over the same ranks."""
        return ShardedWeights(self._communicator)

    def held(self) -> tuple[Tensor, ...]:
        """Return this rank's slices."""
        return tuple(self._slices)

    def check_agreement(self) -> None:
        """Check that all ranks registered the same names, shapes and dtypes in the same order.

        Raises:
            RankMismatchError: on every rank, naming the first difference.
        """
        listings = self._communicator.all_gather_object(self._signatures)
        for other, listing in enumerate(listings):
            difference = _first_difference(listings[0], listing)
            if difference is not None:
                raise RankMismatchError(
                    f"weights: expected the same parameters on all {len(listings)} ranks, but "
                    f"number {difference} is {_entry(listings[0], difference)} on rank 0 and "
                    f"{_entry(listing, difference)} on rank {other}. Load the same network on "
                    "every rank."
                )

    # -- private ---------------------------------------------------------------------------

    def _keep(self, handle: WeightHandle, tensor: Tensor) -> None:
        self._slices.append(self._cut(tensor))
        self._strides.append(dense_strides(tensor))
        self._uses.append(0)

    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        return same_bits(self._slices[handle.index], self._cut(tensor))

    def _cut(self, tensor: Tensor) -> Tensor:
        """Copy this rank's slice ([c], zero-padded) out of the whole tensor."""
        ranks, rank = self._communicator.size, self._communicator.rank
        length = -(-tensor.numel() // ranks)
        part = in_memory_order(tensor)[rank * length : (rank + 1) * length]
        padded = torch.zeros(length, dtype=tensor.dtype, device=tensor.device)
        padded[: part.numel()] = part
        return padded

    def _check_same_gather(self, handle: WeightHandle) -> None:
        """Exchange headers and compare them; every rank comes to the same conclusion."""
        if self._communicator.size == 1:
            return
        digest = int(self.digest[:_DIGEST_HEX_DIGITS], 16)
        header = (handle.index, self._uses[handle.index], digest)
        headers = self._communicator.all_gather_integers("gather_header", header)
        if all(other == headers[0] for other in headers):
            return
        if any(other[2] != headers[0][2] for other in headers):
            self.check_agreement()
        listing = ", ".join(
            f"rank {rank} gathers {self._name(index)} for use {uses + 1}"
            for rank, (index, uses, _) in enumerate(headers)
        )
        raise RankMismatchError(
            f"weights: expected all {len(headers)} ranks to gather the same parameter, but "
            f"{listing}. Going on would mix their weights; the ranks did not follow one schedule."
        )

    def _name(self, index: int) -> str:
        known = index < len(self._handles)
        return f'"{self._handles[index].name}"' if known else f"unknown parameter number {index}"


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _entry(listing: list[str], position: int) -> str:
    return f'"{listing[position]}"' if position < len(listing) else "missing"


def _first_difference(one: list[str], other: list[str]) -> int | None:
    for position in range(max(len(one), len(other))):
        if one[position : position + 1] != other[position : position + 1]:
            return position
    return None
