"""How much memory one backward pass, and the subproblems that wait, may take."""

from __future__ import annotations

import math

import torch

from auto_LiRPA_patches.sharding.collectives import Communicator
from complete_verifier.bounds.host_memory import available_host_bytes

# Half of what is free is left to weights, α, saved tensors and everybody else; the ceiling keeps
# one chunk short enough for the clock to be asked every few seconds on a CPU.
_SHARE = 0.5
_CEILING_CPU = 2 << 30


def memory_limit(device: torch.device, ranks_on_host: int, world: Communicator) -> int:
    """Bytes of coefficients one backward pass may hold, the same number on all ranks.

    Args:
        device: where bounds are computed.
        ranks_on_host: ranks that share this host's memory.
        world: all ranks; the smallest limit counts.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        own = int(free * _SHARE)
    else:
        own = min(_CEILING_CPU, int(available_host_bytes() * _SHARE) // max(1, ranks_on_host))
    return world.agree_min(max(own, 1))


def alpha_limit(device: torch.device, ranks_on_host: int, world: Communicator) -> int:
    """Bytes that α, its gradient and the optimiser's state may take, the same on all ranks."""
    if device.type == "cuda":
        return memory_limit(device, ranks_on_host, world)
    return pool_limit(ranks_on_host, world)


def pool_limit(ranks_on_host: int, world: Communicator) -> int:
    """Bytes that waiting subproblems may take in a rank's host memory, the same on all ranks."""
    own = int(available_host_bytes() * _SHARE) // max(1, ranks_on_host)
    return world.agree_min(max(own, 1))


def memory_used(device: torch.device, world: Communicator) -> float:
    """Largest share of a GPU's memory allocated so far, the most of all ranks; 1 on CPUs.

    There the batch does not fill a processor that would else stand idle, so a share that allows no
    growth is the answer.
    """
    if device.type != "cuda":
        return 1.0
    _, total = torch.cuda.mem_get_info(device)
    percent = math.ceil(100 * torch.cuda.max_memory_allocated(device) / total)
    return -world.agree_min(-percent) / 100
