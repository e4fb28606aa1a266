"""The message that goes ahead of every weight: what a rank is doing, and small weights themselves.

Layout (bytes, on every rank): 64 of header, 8 192 of payload::

    0   where      whether the ranks speak of the same thing at all
    8   asked      weight the rank has just been asked for, and
    16  uses       how often it was before
    24  past       hash of everything asked for before
    32  announced  weight this message is about, -1 = none
    40  digest     hash of all registered names, shapes, dtypes, strides and values
    48  then       weight that the rank is going to ask for next, -1 = none is guessed
    56  plan       hash of it and those after it
    64  payload    this rank's slice of the announced weight, where it fits

The size never varies, so ranks that fall out of step still exchange whole messages and learn of
it; weights of different size would abort the process instead (gloo), and equal ones mix silently.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.collectives import Communicator, PendingGather

INLINE_BYTES = 8192
"""Largest slice that travels in the packet; measured on gloo, as fast as the header alone."""

_HEADER_INTEGERS = 8
_HEADER_BYTES = 8 * _HEADER_INTEGERS
_MARK = 0x7765696768747321  # tells a packet from any other message


@dataclass(frozen=True)
class Header:
    """What one rank says of itself; see the layout above."""

    asked: int
    uses: int
    past: int
    announced: int
    digest: int
    then: int
    plan: int


class Packet:
    """One packet on its way, begun by `send`."""

    def __init__(self, pending: PendingGather, num_bytes: int) -> None:
        self._pending = pending
        self._num_bytes = num_bytes

    @staticmethod
    def send(communicator: Communicator, header: Header, part: Tensor | None) -> Packet:
        """Begin to exchange packets; returns at once.

        Args:
            part: this rank's slice [c] if it `fits`; None sends the header alone.
        """
        message = torch.zeros(_HEADER_BYTES + INLINE_BYTES, dtype=torch.uint8)
        integers = [_MARK, *astuple(header)]
        message[: 8 * len(integers)] = torch.tensor(integers, dtype=torch.int64).view(torch.uint8)
        num_bytes = 0
        if part is not None:
            num_bytes = part.nbytes
            message[_HEADER_BYTES : _HEADER_BYTES + num_bytes] = part.view(torch.uint8)
        buffer = communicator.gather_buffer(message)
        return Packet(communicator.start_all_gather(message, buffer), num_bytes)

    def headers(self) -> list[Header | None]:
        """Every rank's header, by rank; None where a rank sent something else. Waits."""
        rows = self._pending.wait()[:, :_HEADER_BYTES].contiguous().view(torch.int64).tolist()
        return [Header(*row[1:8]) if row[0] == _MARK else None for row in rows]

    def payload(self) -> Tensor:
        """All ranks' slices, one after the other: uint8 ``[R * num_bytes]``. Waits."""
        gathered = self._pending.wait()
        return gathered[:, _HEADER_BYTES : _HEADER_BYTES + self._num_bytes].reshape(-1)


def fits(part: Tensor) -> bool:
    """Whether a slice travels in the packet: small, and in the memory that packets use."""
    return part.nbytes <= INLINE_BYTES and part.device.type == "cpu"
