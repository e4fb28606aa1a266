"""Integers and small objects that ranks tell each other, and what they decide together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from auto_LiRPA_patches.errors import RanksDisagreeError
from auto_LiRPA_patches.sharding.collectives.group import Group, all_gather_single, memory_of
from auto_LiRPA_patches.sharding.collectives.mailbox import Mailbox

_MESSAGE_INTEGERS = 8  # one tag and up to seven values: a cache line, sent as fast as one integer


class MetadataGroup(Group):
    """A group whose ranks can compare notes; with one rank everything returns at once."""

    def all_gather_integers(self, purpose: str, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Return every rank's `values`: at most 7 of 64 signed bits, as many on all ranks.

        Every message has the same size and says what it is for, so two ranks that meet here for
        different reasons both learn it; messages of different size would abort the process.

        Raises:
            RanksDisagreeError: on every rank, if the ranks' purposes or numbers of values differ.
        """
        if self._group is None:
            return [tuple(values)]
        if self._mailbox is not None:
            return self._leave_integers(self._mailbox, purpose, values)
        tag = zlib.crc32(f"{purpose}/{len(values)}".encode())
        padding = [0] * (_MESSAGE_INTEGERS - 1 - len(values))
        source = torch.tensor([tag, *values, *padding], dtype=torch.int64)
        gathered = torch.empty(self._size * _MESSAGE_INTEGERS, dtype=torch.int64)
        with self._collective(purpose):
            all_gather_single(gathered, source, group=self._group)
        rows = gathered.view(self._size, _MESSAGE_INTEGERS).tolist()
        if any(row[0] != tag for row in rows):
            self._explain_meeting(f"{purpose} with {len(values)} values")
        return [tuple(row[1 : 1 + len(values)]) for row in rows]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's `value`, by rank; pickled, so for small metadata only."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self._size
        with self._collective("all_gather_object", sent=True):
            dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the `value` of group rank `source`; pickled, so for small metadata only."""
        if self._group is None:
            return value
        box = [value]
        with self._collective("broadcast_object", sent=True):
            dist.broadcast_object_list(
                box, group_src=source, group=self._group, device=torch.device("cpu")
            )
        return box[0]

    def agree_max(self, value: int) -> int:
        """Return the largest `value` of all ranks."""
        return max(row[0] for row in self.all_gather_integers("agree_max", [value]))

    def agree_min(self, value: int) -> int:
        """Return the smallest `value` of all ranks."""
        return min(row[0] for row in self.all_gather_integers("agree_min", [value]))

    def agree_any(self, condition: bool) -> bool:
        """Return whether `condition` holds on at least one rank."""
        return any(row[0] for row in self.all_gather_integers("agree_any", [int(condition)]))

    def agree_all(self, condition: bool) -> bool:
        """Return whether `condition` holds on every rank."""
        return all(row[0] for row in self.all_gather_integers("agree_all", [int(condition)]))

    def agree_same(self, what: str, value: str) -> None:
        """Check that `value` (a hash, a version) is the same on every rank.

        Raises:
            RanksDisagreeError: on every rank, naming `what` and each rank's value.
        """
        values = self.all_gather_object(value)
        if any(other != values[0] for other in values):
            listing = ", ".join(f"{v!r} on rank {r}" for r, v in enumerate(values))
            raise RanksDisagreeError(
                f"{what}: expected the same on all {self._size} ranks of group {self._name!r}, "
                f"got {listing}. Start every rank with the same files, options and versions."
            )

    def barrier(self) -> None:
        """Wait until every rank of the group has come here."""
        self.all_gather_integers("barrier", [])

    def _leave_integers(
        self, mailbox: Mailbox, purpose: str, values: Sequence[int]
    ) -> list[tuple[int, ...]]:
        own = torch.tensor(values, dtype=torch.int64)
        gathered = torch.empty(self._size, len(values), dtype=torch.int64)
        with self._collective(purpose):
            mailbox.all_gather(
                f"{self._name}.{purpose} with {len(values)} values",
                memory_of(own),
                memory_of(gathered),
            )
        return [tuple(row) for row in gathered.tolist()]

    def _explain_meeting(self, mine: str) -> NoReturn:
        """End the run on all ranks, each of which has just seen that their purposes differ."""
        purposes = self.all_gather_object(mine)
        listing = ", ".join(f"rank {rank} at {purpose}" for rank, purpose in enumerate(purposes))
        raise RanksDisagreeError(
            f"group {self._name!r}: expected all {self._size} ranks at the same collective, got "
            f"{listing}. The ranks did not follow one schedule."
        )
