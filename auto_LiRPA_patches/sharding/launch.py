"""Read from the environment how this process was started: alone, or as one rank of torchrun.

The only environment variables read are the four that torchrun documents. Nothing is written, and
torch is not imported, so the configuration can be checked against the number of ranks at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from auto_LiRPA_patches.sharding.mesh import MeshError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Launch:
    """How many ranks the launcher started, and which one this process is."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Position among the ranks of this host; also the accelerator to use."""
    local_world_size: int = 1
    """Ranks on this host; they share its cores."""


def launched_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher that speaks torchrun's variables started this process."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the launcher's numbers; a process started plainly is rank 0 of 1.

    Raises:
        MeshError: if the launcher's variables are incomplete, not integers, or contradict.
    """
    if not launched_by_torchrun(environment):
        return Launch()
    rank, world_size, local_rank, local_world_size = (_integer(environment, n) for n in _NAMES)
    if not (0 <= rank < world_size and 0 <= local_rank < local_world_size <= world_size):
        raise MeshError(
            "launch: expected 0 <= RANK < WORLD_SIZE and 0 <= LOCAL_RANK < LOCAL_WORLD_SIZE <= "
            f"WORLD_SIZE, got {rank}, {world_size}, {local_rank}, {local_world_size}. "
            "Start the ranks with torchrun."
        )
    return Launch(rank, world_size, local_rank, local_world_size)


def _integer(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise MeshError(
            f"launch: expected the environment variable {name} to be an integer, got {text!r}. "
            "Start the ranks with torchrun, which sets it."
        ) from None
