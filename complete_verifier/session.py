"""What one process sets up once: its ranks, its device, the patches, and the resolved config."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from auto_LiRPA_patches import registry
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks, start
from auto_LiRPA_patches.sharding.launch import Launch
from auto_LiRPA_patches.sharding.mesh import Mesh
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.config import (
    Config,
    ConfigError,
    Facts,
    LoadedConfig,
    Resolved,
    resolve,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """One process of a run.

    Attributes:
        config: every `auto` resolved.
        loaded: the config as it was written, with origins and ignored keys.
        resolved: what was resolved, and why.
        ranks: the groups this rank belongs to.
        launch: how the process was started.
        device: where it computes.
        scratch: folder for files that end with the run.
    """

    config: Config
    loaded: LoadedConfig
    resolved: tuple[Resolved, ...]
    ranks: Ranks
    launch: Launch
    device: torch.device
    scratch: Path

    @property
    def speaks(self) -> bool:
        """Whether this rank prints and writes files: rank 0 alone does."""
        return self.ranks.world.rank == 0

    @property
    def row_ranks(self) -> Communicator:
        """The ranks that divide the rows of initial bounds: the data axis under shard_specs."""
        shared = self.config.parallel.shard_specs is True
        return self.ranks.data if shared else Communicator.single("rows")

    def weights(self) -> WeightSource:
        """An empty store for one network's parameters: sharded over the data axis under fsdp."""
        if self.config.parallel.fsdp:
            parallel = self.config.parallel
            return ShardedWeights(
                self.ranks.data,
                prefetch=parallel.fsdp_prefetch,
                shared_memory=parallel.fsdp_shared_memory,
            )
        return OneRankWeights()


def open_session(loaded: LoadedConfig, launch: Launch, scratch: Path) -> Session:
    """Join the other ranks, apply the patches, and settle every `auto`.

    Args:
        scratch: folder for files that end with the run, each rank's own.

    Raises:
        ConfigError: the config asks for ranks or a device that are not there, or leaves ranks
            without a share of the work.
        PatchError: auto_LiRPA is missing or not the version the patches are written for.
        RanksDisagreeError: the ranks disagree about the config, the patches, or what decides the
            bits of their results.
    """
    facts = Facts(cuda_available=torch.cuda.is_available(), num_ranks=launch.world_size)
    config, resolved = resolve(loaded.config, facts, loaded.origins)
    _check_share(config, launch)
    device = _device(config, launch)
    _make_repeatable(config)
    registry.apply()
    if launch.rank == 0:
        logger.info("auto_LiRPA: %d patches applied", len(registry.applied()))
    mesh = Mesh(launch.world_size, int(config.parallel.tp), launch.rank)
    backend = config.parallel.backend
    ranks = start(mesh, backend, config.parallel.timeout)
    for what, value in _common_ground(loaded, device):
        ranks.world.agree_same(what, value)
    return Session(config, loaded, resolved, ranks, launch, device, scratch)


def _check_share(config: Config, launch: Launch) -> None:
    """Refuse ranks that would all do the same work."""
    tp = int(config.parallel.tp)
    shared = config.parallel.fsdp or config.parallel.shard_specs is True
    shared = shared or config.parallel.shard_domains is True
    if launch.world_size > tp and not shared:
        groups = f", {launch.world_size // tp} times {tp} for parallel.tp" if tp > 1 else ""
        raise ConfigError(
            f"parallel: {launch.world_size} ranks were started{groups}, but nothing is spread over "
            "them. Leave parallel.shard_specs and shard_domains at auto to share rows and "
            "subproblems, set parallel.fsdp (--fsdp) to share the weights, or start one process."
        )


def _device(config: Config, launch: Launch) -> torch.device:
    """Where this rank computes: an accelerator of its own, or the CPU."""
    if config.general.device != "cuda":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if launch.local_world_size > count:
        raise ConfigError(
            f"general.device: expected a CUDA device for each of the {launch.local_world_size} "
            f"ranks on this host, got {count}. Start fewer ranks per host, or use --device cpu."
        )
    device = torch.device("cuda", launch.local_rank)
    torch.cuda.set_device(device)
    return device


def _common_ground(loaded: LoadedConfig, device: torch.device) -> tuple[tuple[str, str], ...]:
    """What has to be equal on all ranks; the last few decide the bits of every product."""
    return (
        ("the configuration", loaded.hash),
        ("the patches of auto_LiRPA", ",".join(sorted(registry.applied()))),
        ("the version of torch", torch.__version__),
        ("the version of Python", sys.version),
        ("the number of threads (OMP_NUM_THREADS)", str(torch.get_num_threads())),
        ("the instruction set of the CPU", torch.backends.cpu.get_cpu_capability()),
        (
            "the device",
            torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        ),
    )


def _make_repeatable(config: Config) -> None:
    torch.manual_seed(config.general.seed)
    # TF32 keeps 10 bits of the mantissa: bounds would round far beyond what they claim.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if config.general.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
