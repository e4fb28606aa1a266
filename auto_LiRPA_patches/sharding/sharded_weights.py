"""Weights held as one slice per rank, and gathered for the duration of one operator call (FSDP).

Shapes (R ranks on the axis, n elements in the parameter, c = ceil(n / R)):

    name       on each rank    meaning
    slice      [c]             elements [rank*c, rank*c + c) in memory order; zeros past n
    gathered   [R * c]         fresh buffer; its first n elements, shaped, are the weight

Communication, where all ranks share a host: none; a rank reads the others' slices from their memory
(`host_slices`). Nothing can be mixed then, but ranks that gather different weights do not compute
the same, so every 64th gather they compare what they gathered (`gather_trail`), unless they are
meant to part (`apart`).

Otherwise: a packet of fixed size per gather (`gather_packet`), which carries a small weight whole;
of a larger one, c elements follow in a second message. Nothing is computed with the data, so a
gathered weight equals the registered one bit for bit. What follows is about packets.

Why the packet. Two ranks that gather equally shaped weights in different order receive mixed
weights without any error, and the bounds computed from them prove something about no network at
all. So no weight is used, and no message whose size could differ is begun, before every rank's
packet said the same.

Prefetch. The next weights are guessed (`gather_order`), alike on all ranks. Their packets go up to
three gathers ahead, and the nearest large weight is fetched while the caller computes with the
present one: two whole layers at most are alive, the one in use and the one on its way. What keeps
a wrong guess, or a rank that strays or guesses on its own, harmless:

- every gather first looks at all packets of the gathers before;
- each then sends one packet, which says what is asked for and how it goes on (the plan). A rank for
  which all is as the packets said sends nothing else but the weight they announced, which all ranks
  have agreed on; one that has more to say, or other things, first looks at its packet's answers;
- what was guessed wrong is waited for and dropped.

The first thing that two ranks exchange after they part is therefore a packet whose headers differ,
and the rank that left the agreed way reads them before it sends anything of another size.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import RankMismatchError, RanksDisagreeError
from auto_LiRPA_patches.sharding.collectives import Communicator, PendingGather
from auto_LiRPA_patches.sharding.gather_order import GatherOrder
from auto_LiRPA_patches.sharding.gather_packet import Header, Packet, fits
from auto_LiRPA_patches.sharding.gather_trail import GatherTrail, Step
from auto_LiRPA_patches.sharding.host_slices import HostSlices
from auto_LiRPA_patches.sharding.huge_pages import prefer_huge_pages
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, count_as
from auto_LiRPA_patches.sharding.number_hash import hash_of
from auto_LiRPA_patches.sharding.weights import (
    ParameterShare,
    WeightHandle,
    WeightSource,
    dense_strides,
    in_memory_order,
    same_bits,
)

_CONTENT_HEX_DIGITS = 16
_DIGEST_HEX_DIGITS = 15  # 60 bits, so that it fits a signed 64-bit integer
_PACKETS_AHEAD = 3
_NOTHING = -1
_NEXT = 2  # place in a plan of the weight asked for next


@dataclass
class _Ticket:
    """One weight on its way: first its packet, then, if it did not fit there, its slices."""

    handle: WeightHandle
    packet: Packet
    slices: PendingGather | None = None

    def holds(self, handle: WeightHandle, part: Tensor) -> bool:
        """Whether it is the weight `handle`, here or on its way."""
        return self.handle == handle and (fits(part) or self.slices is not None)


class ShardedWeights(WeightSource):
    """Keep 1/R of every parameter; no reference to a registered tensor survives `register`."""

    copies = True

    def __init__(
        self, communicator: Communicator, *, prefetch: bool = False, shared_memory: bool = True
    ) -> None:
        """Share weights over `communicator`, normally the data axis.

        All its ranks must register and gather in the same order.

        Args:
            prefetch: fetch the next weight while the present one is in use. Changes time and
                memory (one more layer), never a weight; the same on all ranks.
            shared_memory: where all ranks are on one host, read their slices instead of sending
                them. Changes time, never a weight; the same on all ranks.
        """
        super().__init__()
        self._communicator = communicator
        self._host = HostSlices(communicator) if shared_memory and communicator.size > 1 else None
        self._trail = GatherTrail(communicator)
        self._slices: list[Tensor] = []
        self._strides: list[tuple[int, ...]] = []
        self._uses: list[int] = []
        self._order = GatherOrder() if prefetch and communicator.size > 1 else None
        self._tickets: deque[_Ticket] = deque()  # guessed, in the order they are expected
        self._unchecked: deque[Packet] = deque()  # sent since the last gather began
        self._past = 0
        self._opened: dict[int, Tensor] | None = None
        self._is_apart = False

    def gather(self, handle: WeightHandle) -> Tensor:
        """Assemble the weight in a fresh buffer; collective over the communicator if not `apart`.

        With one rank the slice is the whole, and is returned without a copy.

        Raises:
            RanksDisagreeError: on every rank, if some rank gathers another parameter, has gathered
                this one another number of times, or registered other parameters. With prefetch a
                rank may learn of it at its next gather, on one host within 64: what it has got by
                then is right.
        """
        self._check_mine(handle)
        if self._opened is not None and handle.index in self._opened:
            return self._opened[handle.index]
        flat = self._assemble(handle)
        weight = flat.as_strided(handle.shape, self._strides[handle.index])
        if self._opened is not None:
            self._opened[handle.index] = weight
        return weight

    def expect(self, handles: Sequence[WeightHandle]) -> None:
        """Learn what the next pass will gather; see `WeightSource.expect`."""
        if self._order is not None:
            self._order.expect([handle.index for handle in handles])

    @contextmanager
    def gathering_once(self) -> Iterator[None]:
        """Let one operator call use a weight repeatedly for one gather; see `WeightSource`."""
        outer = self._opened
        self._opened = {} if outer is None else outer
        try:
            yield
        finally:
            self._opened = outer

    def may_part(self) -> bool:
        """Whether ranks read each other's slices, so that none waits for another."""
        if self._communicator.size == 1:
            return True
        readable = all(part.device.type == "cpu" for part in self._slices)
        return readable and self._host is not None and self._host.meet()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let every rank gather what it likes, when it likes; see `WeightSource.apart`."""
        if not self.may_part():
            raise ValueError("weights: ranks that send each other their slices cannot part")
        self.settle()  # until here they have done the same
        outer, self._is_apart = self._is_apart, True
        try:
            yield
        finally:
            self._is_apart = outer

    def settle(self) -> None:
        """Drop whatever was fetched ahead; no weight stays whole on any rank. A collective.

        Raises:
            RanksDisagreeError: on every rank, if some rank has gathered other weights until here.
        """
        if self._host is not None and self._host.is_met:
            self._compare_trails()
        self._check_packets()
        self._drop_tickets(len(self._tickets))

    def explain(self, error: Exception) -> None:
        """Look whether this rank failed because it left the others' schedule."""
        steps = None if self._host is None else self._host.parting()
        if steps is not None:
            text = _disagreement(self._told(steps), self._communicator.size)
            raise RankMismatchError(text) from error

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
        return ShardedWeights(
            self._communicator,
            prefetch=self._order is not None,
            shared_memory=self._host is not None,
        )

    def held(self) -> tuple[Tensor, ...]:
        """Return this rank's slices."""
        return tuple(self._slices)

    def check_agreement(self) -> None:
        """Check that all ranks registered the same names, shapes and values in the same order.

        Raises:
            RanksDisagreeError: on every rank, naming the first difference.
        """
        listings = self._communicator.all_gather_object(self._signatures)
        for other, listing in enumerate(listings):
            difference = _first_difference(listings[0], listing)
            if difference is not None:
                raise RanksDisagreeError(
                    f"weights: expected the same parameters on all {len(listings)} ranks, but "
                    f"number {difference} is {_entry(listings[0], difference)} on rank 0 and "
                    f"{_entry(listing, difference)} on rank {other}. Load the same network on "
                    "every rank."
                )

    # -- private ---------------------------------------------------------------------------

    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        self._slices.append(self._cut(tensor, self._room(handle, tensor.numel(), device)))
        self._strides.append(dense_strides(tensor))
        self._uses.append(0)

    def _content(self, tensor: Tensor) -> str:
        """Slices of two trainings of one network fit together, and prove nothing about either."""
        if self._communicator.size == 1:
            return ""
        elements = in_memory_order(tensor).cpu().contiguous().view(torch.uint8)
        return f" sha256 {hashlib.sha256(elements.numpy().data).hexdigest()[:_CONTENT_HEX_DIGITS]}"

    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        kept = self._slices[handle.index]
        return same_bits(kept, self._cut(tensor, torch.zeros_like(kept)))

    def _room(self, handle: WeightHandle, numel: int, device: torch.device) -> Tensor:
        """Zeros ``[c]`` for this rank's slice, where the other ranks of the host can read them."""
        length = -(-numel // self._communicator.size)
        room = None
        if self._host is not None and device.type == "cpu":
            room = self._host.place(handle.index, length, handle.dtype)
        if room is None:
            room = torch.zeros(length, dtype=handle.dtype, device=device)
        count_as(MemoryKind.WEIGHTS, room)
        return room

    def _cut(self, tensor: Tensor, padded: Tensor) -> Tensor:
        """Copy this rank's slice ([c], zero-padded) out of the whole tensor."""
        rank, length = self._communicator.rank, padded.numel()
        part = in_memory_order(tensor)[rank * length : (rank + 1) * length]
        padded[: part.numel()] = part
        return padded

    def _assemble(self, handle: WeightHandle) -> Tensor:
        """The weight's elements in memory order, ``[R * c]``."""
        part = self._slices[handle.index]
        if self._communicator.size == 1:
            self._uses[handle.index] += 1
            return part
        if self._host is not None and part.device.type == "cpu" and self._host.meet():
            return self._read(self._host, handle)
        self._check_packets()
        next_ticket = self._tickets[0] if self._tickets else None
        if next_ticket is not None and next_ticket.holds(handle, part):
            ticket = self._tickets.popleft()
        else:
            ticket = self._fetch_now(handle, part)
        flat = ticket.packet.payload() if ticket.slices is None else ticket.slices.wait().view(-1)
        self._look_ahead(handle)
        self._uses[handle.index] += 1
        self._past = hash_of((handle.index,), self._past)
        return flat.view(part.dtype)

    def _read(self, host: HostSlices, handle: WeightHandle) -> Tensor:
        """Put a weight together out of the memory of this host's ranks."""
        if not self._is_apart:
            self._follow(host, handle)
        elif not self._trail.knows(handle.index):
            raise ValueError(f"weight {handle.name!r} was registered while ranks were apart")
        part = self._slices[handle.index]
        return host.read(handle.index, self._whole(part)).view(-1)

    def _follow(self, host: HostSlices, handle: WeightHandle) -> None:
        """Leave a trail, and compare it with the other ranks' now and then."""
        if not self._trail.knows(handle.index):
            self._compare_trails()  # before that another rank may not have registered it
        step = handle.index, self._uses[handle.index]
        self._trail.note(step)
        host.note(step)
        self._uses[handle.index] += 1
        if self._trail.is_due:
            self._compare_trails()

    def _compare_trails(self) -> None:
        layout = 0 if self._host is None else self._host.layout
        steps = self._trail.compare(len(self._handles), self._digest_number, layout)
        if steps is None:
            return
        self.check_agreement()
        raise RanksDisagreeError(_disagreement(self._told(steps), self._communicator.size))

    def _told(self, steps: Sequence[Step | None]) -> str:
        return ", ".join(
            f"rank {rank} " + ("does something else" if step is None else self._asks_for(*step))
            for rank, step in enumerate(steps)
        )

    @property
    def _digest_number(self) -> int:
        return int(self.digest[:_DIGEST_HEX_DIGITS] or "0", 16)

    def _fetch_now(self, handle: WeightHandle, part: Tensor) -> _Ticket:
        """Ask for a weight that was not guessed, or too late, once all ranks are seen to."""
        known = next((ticket for ticket in self._tickets if ticket.handle == handle), None)
        # Memory first: a rank that finds none has not yet made any other rank wait for it.
        is_coming = known is not None and known.slices is not None
        buffer = None if fits(part) or is_coming else self._whole(part)
        said = self._announce(handle, handle if known is None else None)
        self._check_packets()
        ticket = self._take_ticket(handle) or said
        if buffer is not None:
            ticket.slices = self._communicator.start_all_gather(part, buffer)
        return ticket

    def _whole(self, part: Tensor) -> Tensor:
        """Room for all ranks' slices, ``[R, c]``."""
        buffer = prefer_huge_pages(self._communicator.gather_buffer(part))
        count_as(MemoryKind.GATHERED, buffer)
        return buffer

    def _take_ticket(self, handle: WeightHandle) -> _Ticket | None:
        """The ticket of `handle`, if it was guessed; those expected before it are dropped."""
        waiting = [ticket.handle.index for ticket in self._tickets]
        if handle.index not in waiting:
            return None
        self._drop_tickets(waiting.index(handle.index))
        return self._tickets.popleft()

    def _announce(
        self, asked: WeightHandle, handle: WeightHandle | None, plan: Sequence[int] = ()
    ) -> _Ticket:
        """Send a packet about `handle` (None = nothing) while `asked` is being gathered."""
        header = Header(
            asked=asked.index,
            uses=self._uses[asked.index],
            past=self._past,
            announced=_NOTHING if handle is None else handle.index,
            digest=self._digest_number,
            then=plan[_NEXT] if len(plan) > _NEXT else _NOTHING,
            plan=hash_of(plan),
        )
        part = None if handle is None else self._slices[handle.index]
        inline = part if part is not None and fits(part) else None
        packet = Packet.send(self._communicator, header, inline)
        self._unchecked.append(packet)
        return _Ticket(asked if handle is None else handle, packet)

    def _look_ahead(self, asked: WeightHandle) -> None:
        """Send packets of the next weights, and begin to fetch the nearest large one."""
        if self._order is None:
            return
        self._order.note(asked.index)
        ahead = self._order.upcoming(_PACKETS_AHEAD)
        waiting = [ticket.handle.index for ticket in self._tickets]
        goes_on = waiting == ahead[: len(waiting)]
        new = [self._handles[index] for index in (ahead[len(waiting) :] if goes_on else ahead)]
        plan = (int(goes_on), len(waiting), *ahead)
        first = self._announce(asked, new[0] if new else None, plan)
        agreed = len(waiting)
        if not goes_on or len(new) > 1:
            self._check_packets()
            agreed += 1
        if not goes_on:
            self._drop_tickets(len(waiting))
            agreed = 1
        if new:
            self._tickets.append(first)
            self._tickets.extend(self._announce(asked, handle, plan) for handle in new[1:])
        for ticket in list(self._tickets)[:agreed]:
            part = self._slices[ticket.handle.index]
            if not fits(part):
                if ticket.slices is None:
                    into = self._whole(part)
                    ticket.slices = self._communicator.start_all_gather(part, into)
                break

    def _drop_tickets(self, count: int) -> None:
        """Wait for the first `count` of what was guessed, and forget it."""
        for _ in range(count):
            ticket = self._tickets.popleft()
            if ticket.slices is not None:
                ticket.slices.wait()

    def _check_packets(self) -> None:
        """Compare every rank's headers of all packets sent; all ranks conclude the same."""
        while self._unchecked:
            self._check_headers(self._unchecked.popleft().headers())

    def _check_headers(self, headers: Sequence[Header | None]) -> None:
        if None not in headers and len(set(headers)) == 1:
            return
        spoken = [header for header in headers if header is not None]
        if len({header.digest for header in spoken}) > 1:
            self.check_agreement()
        plans_differ = len({header.plan for header in spoken}) > 1
        listing = ", ".join(
            f"rank {rank} {self._said(header, with_plan=plans_differ)}"
            for rank, header in enumerate(headers)
        )
        raise RanksDisagreeError(_disagreement(listing, len(headers)))

    def _said(self, header: Header | None, *, with_plan: bool) -> str:
        if header is None:
            return "does something else"
        said = self._asks_for(header.asked, header.uses)
        if not with_plan or header.then == _NOTHING:
            return said
        return f"{said} and {self._name(header.then)} next"

    def _asks_for(self, index: int, uses: int) -> str:
        return f"gathers {self._name(index)} for use {uses + 1}"

    def _name(self, index: int) -> str:
        known = index < len(self._handles)
        return f'"{self._handles[index].name}"' if known else f"unknown parameter number {index}"


def _disagreement(listing: str, ranks: int) -> str:
    return (
        f"weights: expected all {ranks} ranks to gather the same parameter, but {listing}. "
        "Going on would mix their weights; the ranks did not follow one schedule."
    )


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
