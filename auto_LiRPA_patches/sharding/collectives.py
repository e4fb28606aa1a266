"""Let ranks exchange tensors and agree on numbers; the only module that uses torch.distributed.

`start(mesh)` gives a `Ranks`: one `Communicator` for the world and one along each mesh axis. A
group of one rank is a `Communicator` too; it moves nothing, and a world of one never initialises
torch.distributed. Callers hold a `Communicator` and never ask how many ranks there are.

What every collective here promises:

- every rank of the group reaches it, in the same order (the callers' duty), within the timeout
  given to `start`; otherwise it ends with `RankMismatchError`, never with a hang;
- it carries a name, "<group>.<operation>", visible in torch.profiler traces;
- it carries **no gradient**: a tensor that requires grad is refused, because torch's own
  collectives would let the local gradient through unreduced and say nothing;
- metadata (integers, objects) travels in CPU memory over gloo, also beside NCCL, so that reading
  it never stalls an accelerator's stream.

Choices, from what gloo was measured to do: an all-gather with unequal sizes aborts the process,
so `all_gather_uneven` pads; SUM is the only reduction; maxima are taken from gathered integers.

R in the tables of this module is the number of ranks in the group.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.mesh import Mesh, MeshError

Backend = Literal["auto", "nccl", "gloo"]

# torch 2.14 renamed the call and warns on the old name; older releases have only the old one.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


_MESSAGE_INTEGERS = 8  # one tag and up to seven values: a cache line, sent as fast as one integer


class Communicator:
    """One group of ranks along one axis, as the rank that holds this object sees it."""

    def __init__(self, name: str, size: int, rank: int, group: dist.ProcessGroup | None) -> None:
        """Wrap `group`; use `start` or `Communicator.single` instead of calling this.

        Args:
            name: axis name used in traces and errors.
            size: ranks in the group.
            rank: this rank's position in the group.
            group: torch's process group; None exactly when `size` is 1.
        """
        if (group is None) != (size == 1):
            raise ValueError(f"communicator {name!r}: a group is needed if and only if size > 1")
        self._name = name
        self._size = size
        self._rank = rank
        self._group = group

    @classmethod
    def single(cls, name: str = "single") -> Communicator:
        """Return the group of one rank: every method returns at once, without torch.distributed."""
        return cls(name, 1, 0, None)

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

    def __repr__(self) -> str:
        return f"Communicator({self._name!r}, rank {self._rank} of {self._size})"

    # -- tensors ---------------------------------------------------------------------------

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
            # Bytes, because gloo does not know every dtype and NaN payloads must survive.
            source, target = _bytes(tensor.contiguous()), _bytes(gathered)
            with self._collective("all_gather"):
                _all_gather_single(target, source, group=self._group)
        return gathered

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
        if len(sizes) != self._size or sizes[self._rank] != tensor.shape[0]:
            raise ValueError(
                f"{self._name}.all_gather_uneven: expected {self._size} sizes of which number "
                f"{self._rank} is this rank's {tensor.shape[0]} rows, got {list(sizes)}"
            )
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

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Add `tensor` ([*shape], partial sum) over all ranks in place; return it, replicated.

        All ranks get the same bits; the bits depend on R and on the number of elements.
        """
        self._refuse_gradient("all_reduce_sum", tensor)
        self._refuse_gaps("all_reduce_sum", tensor)
        if self._group is not None and tensor.numel() > 0:
            with self._collective("all_reduce_sum"):
                dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self._group)
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite `tensor` ([*shape]) with that of group rank `source`, and return it."""
        self._refuse_gradient("broadcast", tensor)
        self._refuse_gaps("broadcast", tensor)
        if self._group is not None and tensor.numel() > 0:
            memory = _bytes(tensor)
            with self._collective("broadcast"):
                dist.broadcast(memory, group_src=source, group=self._group)
        return tensor

    # -- small metadata --------------------------------------------------------------------

    def all_gather_integers(self, purpose: str, values: Sequence[int]) -> list[tuple[int, ...]]:
        """Return every rank's `values`: at most 7 of 64 signed bits, as many on all ranks.

        Every message has the same size and says what it is for, so two ranks that meet here for
        different reasons both learn it; messages of different size would abort the process.

        Raises:
            RankMismatchError: on every rank, if the ranks' purposes or numbers of values differ.
        """
        if self._group is None:
            return [tuple(values)]
        tag = zlib.crc32(f"{purpose}/{len(values)}".encode())
        padding = [0] * (_MESSAGE_INTEGERS - 1 - len(values))
        source = torch.tensor([tag, *values, *padding], dtype=torch.int64)
        gathered = torch.empty(self._size * _MESSAGE_INTEGERS, dtype=torch.int64)
        with self._collective(purpose):
            _all_gather_single(gathered, source, group=self._group)
        rows = gathered.view(self._size, _MESSAGE_INTEGERS).tolist()
        if any(row[0] != tag for row in rows):
            self._explain_meeting(f"{purpose} with {len(values)} values")
        return [tuple(row[1 : 1 + len(values)]) for row in rows]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's `value`, by rank; pickled, so for small metadata only."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self._size
        with self._collective("all_gather_object"):
            dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the `value` of group rank `source`; pickled, so for small metadata only."""
        if self._group is None:
            return value
        box = [value]
        with self._collective("broadcast_object"):
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
            RankMismatchError: on every rank, naming `what` and each rank's value.
        """
        values = self.all_gather_object(value)
        if any(other != values[0] for other in values):
            listing = ", ".join(f"{v!r} on rank {r}" for r, v in enumerate(values))
            raise RankMismatchError(
                f"{what}: expected the same on all {self._size} ranks of group {self._name!r}, "
                f"got {listing}. Start every rank with the same files, options and versions."
            )

    def barrier(self) -> None:
        """Wait until every rank of the group has come here."""
        self.all_gather_integers("barrier", [])

    # -- private ---------------------------------------------------------------------------

    def _explain_meeting(self, mine: str) -> NoReturn:
        """End the run on all ranks, each of which has just seen that their purposes differ."""
        purposes = self.all_gather_object(mine)
        listing = ", ".join(f"rank {rank} at {purpose}" for rank, purpose in enumerate(purposes))
        raise RankMismatchError(
            f"group {self._name!r}: expected all {self._size} ranks at the same collective, got "
            f"{listing}. The ranks did not follow one schedule."
        )

    def _refuse_gradient(self, operation: str, tensor: Tensor) -> None:
        # Also with one rank: code that works there must not lose gradients with two.
        if tensor.requires_grad:
            raise ValueError(
                f"{self._name}.{operation}: expected a tensor without gradient, got one of shape "
                f"{tuple(tensor.shape)} that requires grad; collectives carry no gradient. "
                "Detach it, or call this from a torch.autograd.Function with its own adjoint."
            )

    def _refuse_gaps(self, operation: str, tensor: Tensor) -> None:
        if not tensor.is_contiguous():
            raise ValueError(
                f"{self._name}.{operation}: expected a contiguous tensor to write to, got shape "
                f"{tuple(tensor.shape)} with strides {tensor.stride()}. Call contiguous() first."
            )

    @contextmanager
    def _collective(self, operation: str) -> Iterator[None]:
        """Name the call in traces, and turn torch's failure into one sentence."""
        name = f"{self._name}.{operation}"
        try:
            with record_function(name):
                yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # timeout, lost peer; torch has no common class for them
            raise RankMismatchError(
                f'collective "{name}" failed on rank {self._rank} of {self._size}: another rank '
                "ended, is stuck, or is at a different collective; look at the first error "
                f"among the ranks. torch says: {_first_line(error)}"
            ) from error


@dataclass(frozen=True)
class Ranks:
    """The groups that this rank belongs to."""

    mesh: Mesh
    world: Communicator
    """All ranks."""
    data: Communicator
    """Ranks that share weights (fsdp), rows and subproblems."""
    tp: Communicator
    """Ranks that share one wide layer."""

    @classmethod
    def alone(cls) -> Ranks:
        """Return the groups of a process that works alone."""
        return cls(
            Mesh.one_rank(),
            Communicator.single("world"),
            Communicator.single("data"),
            Communicator.single("tp"),
        )


def start(
    mesh: Mesh,
    backend: Backend = "auto",
    timeout_seconds: float = 600,
    *,
    init_method: str = "env://",
) -> Ranks:
    """Join the other ranks of `mesh` and return this rank's groups.

    Args:
        mesh: the grid; with `world_size` 1 nothing is initialised.
        backend: "gloo" (CPU tensors), "nccl" (CUDA tensors over NCCL, CPU tensors over gloo), or
            "auto": nccl where CUDA is available, else gloo.
        timeout_seconds: how long joining, and later any collective, may take.
        init_method: torch's rendezvous address; the default is what torchrun sets up.

    Raises:
        MeshError: on an unknown backend, or when this process has already joined a world.
        RankMismatchError: when the other ranks do not appear within the timeout.
    """
    if backend not in ("auto", "nccl", "gloo"):
        raise MeshError(f"parallel.backend: expected auto, nccl or gloo, got {backend!r}.")
    if mesh.world_size == 1:
        return Ranks.alone()
    if dist.is_initialized():
        raise MeshError("start: this process already belongs to a world; call stop() first.")
    uses_nccl = backend == "nccl" or (backend == "auto" and torch.cuda.is_available())
    timeout = timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if uses_nccl else "gloo",
            init_method=init_method,
            timeout=timeout,
            world_size=mesh.world_size,
            rank=mesh.rank,
        )
    except (RuntimeError, ValueError) as error:  # includes dist.DistError and its kin
        raise RankMismatchError(
            f"start: rank {mesh.rank} could not join a world of {mesh.world_size} ranks within "
            f"{timeout_seconds:g} s. Check that all ranks run. torch says: {_first_line(error)}"
        ) from error
    return Ranks(
        mesh=mesh,
        world=Communicator("world", mesh.world_size, mesh.rank, dist.group.WORLD),
        data=_join_axis("data", [mesh.at(r).data_ranks for r in range(mesh.tp)], mesh, timeout),
        tp=_join_axis(
            "tp", [mesh.at(r * mesh.tp).tp_ranks for r in range(mesh.data)], mesh, timeout
        ),
    )


def stop() -> None:
    """Leave the world; does nothing when none was joined. Waits for nobody, so fit for errors."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _join_axis(
    name: str, groups: Sequence[tuple[int, ...]], mesh: Mesh, timeout: timedelta
) -> Communicator:
    """Create all groups of one axis (torch wants every rank to create every group); return ours."""
    if len(groups[0]) == 1:
        return Communicator.single(name)
    mine: Communicator | None = None
    for ranks in groups:
        group = dist.new_group(list(ranks), timeout=timeout, group_desc=name)
        if mesh.rank in ranks and isinstance(group, dist.ProcessGroup):
            mine = Communicator(name, len(ranks), ranks.index(mesh.rank), group)
    if mine is None:
        raise MeshError(f"mesh: rank {mesh.rank} is in none of the {name} groups {list(groups)}")
    return mine


def _bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as uint8 [num_bytes], without copying."""
    return tensor.view(-1).view(torch.uint8)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
