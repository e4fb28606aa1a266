"""Join the ranks of a run into groups, and leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from auto_LiRPA_patches.errors import RankMismatchError
from auto_LiRPA_patches.sharding.collectives.communicator import Communicator
from auto_LiRPA_patches.sharding.collectives.group import first_line
from auto_LiRPA_patches.sharding.collectives.mailbox import Mailbox
from auto_LiRPA_patches.sharding.mesh import Mesh, MeshError

Backend = Literal["auto", "nccl", "gloo"]


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
    shared_memory: bool = True,
) -> Ranks:
    """Join the other ranks of `mesh` and return this rank's groups.

    Args:
        mesh: the grid; with `world_size` 1 nothing is initialised.
        backend: "gloo" (CPU tensors), "nccl" (CUDA tensors over NCCL, CPU tensors over gloo), or
            "auto": nccl where CUDA is available, else gloo.
        timeout_seconds: how long joining, and later any collective, may take.
        init_method: torch's rendezvous address; the default is what torchrun sets up.
        shared_memory: whether ranks of one host leave each other messages in memory (`mailbox`).

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
            f"{timeout_seconds:g} s. Check that all ranks run. torch says: {first_line(error)}"
        ) from error
    world = Communicator("world", mesh.world_size, mesh.rank, dist.group.WORLD)
    if shared_memory:
        mailbox = Mailbox.meet(mesh.rank, world.all_gather_object, timeout_seconds)
        world = Communicator("world", mesh.world_size, mesh.rank, dist.group.WORLD, mailbox)
    data = [mesh.at(r).data_ranks for r in range(mesh.tp)]
    tp = [mesh.at(r * mesh.tp).tp_ranks for r in range(mesh.data)]
    return Ranks(
        mesh=mesh,
        world=world,
        data=_join_axis("data", data, mesh, timeout, world),
        tp=_join_axis("tp", tp, mesh, timeout, world),
    )


def stop() -> None:
    """Leave the world; does nothing when none was joined. Waits for nobody, so fit for errors."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _join_axis(
    name: str,
    groups: Sequence[tuple[int, ...]],
    mesh: Mesh,
    timeout: timedelta,
    world: Communicator,
) -> Communicator:
    """Create all groups of one axis (torch wants every rank to create every group); return ours.

    Where all ranks of the world share memory, those of an axis do, in boxes of their own unless
    they are the same ranks.
    """
    if len(groups[0]) == 1:
        return Communicator.single(name)
    mine: Communicator | None = None
    for ranks in groups:
        group = dist.new_group(list(ranks), timeout=timeout, group_desc=name)
        if mesh.rank in ranks and isinstance(group, dist.ProcessGroup):
            own = name, len(ranks), ranks.index(mesh.rank), group
            mailbox = world.mailbox
            if mailbox is not None and len(ranks) < mesh.world_size:
                tell = Communicator(*own).all_gather_object
                mailbox = Mailbox.meet(own[2], tell, timeout.total_seconds())
            mine = Communicator(*own, mailbox)
    if mine is None:
        raise MeshError(f"mesh: rank {mesh.rank} is in none of the {name} groups {list(groups)}")
    return mine
