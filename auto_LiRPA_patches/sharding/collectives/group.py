"""One group of ranks as torch knows it: its place in the world, and how its calls are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives.mailbox import Mailbox

# torch 2.14 renamed the call and warns on the old name; older releases have only the old one.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Group:
    """Name, size and position; common ground of tensors and metadata."""

    def __init__(
        self,
        name: str,
        size: int,
        rank: int,
        group: dist.ProcessGroup | None,
        mailbox: Mailbox | None = None,
    ) -> None:
        """Wrap `group`; use `start` or `Communicator.single` instead of calling this.

        Args:
            name: axis name used in traces and errors.
            size: ranks in the group.
            rank: this rank's position in the group.
            group: torch's process group; None exactly when `size` is 1.
            mailbox: for tensors on the CPU, where all ranks of the group are on one host.
        """
        if (group is None) != (size == 1):
            raise ValueError(f"communicator {name!r}: a group is needed if and only if size > 1")
        self._name = name
        self._size = size
        self._rank = rank
        self._group = group
        self._mailbox = mailbox

    @property
    def name(self) -> str:
        """Axis name used in traces and errors."""
        return self._name

    @property
    def size(self) -> int:
        """Number of ranks in the group, R."""
        return self._size

    @property
    def rank(self) -> int:
        """This rank's position in the group, in [0, size)."""
        return self._rank

    @property
    def mailbox(self) -> Mailbox | None:
        """How its ranks exchange tensors on the CPU, if all are on one host."""
        return self._mailbox

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, rank {self._rank} of {self._size})"

    def _mail(self, tensor: Tensor) -> Mailbox | None:
        """The way for `tensor` within a host; None where it has to be sent."""
        return self._mailbox if tensor.device.type == "cpu" else None

    @contextmanager
    def _collective(self, operation: str, *, sent: bool = False) -> Iterator[None]:
        """Name the call in traces, and turn torch's failure into one sentence.

        Args:
            sent: it goes over the network although there is a mailbox, where ranks at another
                collective may wait for this one.
        """
        name = f"{self._name}.{operation}"
        try:
            with record_function(name):
                if sent and self._mailbox is not None:
                    self._mailbox.meet_for(name)
                yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # timeout, lost peer; torch has no common class for them
            raise RankMismatchError(
                f'collective "{name}" failed on rank {self._rank} of {self._size}: another rank '
                "ended, is stuck, or is at a different collective; look at the first error "
                f"among the ranks. torch says: {first_line(error)}"
            ) from error


def memory_of(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as uint8 [num_bytes], without copying.

    Bytes travel, because gloo does not know every dtype and NaN payloads must survive.
    """
    flat = tensor.view(-1)
    if flat.shape[0] < 2:  # whose stride may be any number
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
