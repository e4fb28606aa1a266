"""What one process sets up once: its ranks, its device, the patches, and the resolved config."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

import torch

from auto_LiRPA_patches import registry
from auto_LiRPA_patches.sharding.collectives import Ranks, start
from auto_LiRPA_patches.sharding.launch import Launch
from auto_LiRPA_patches.sharding.mesh import Mesh
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.config import Config, Facts, LoadedConfig, Resolved, resolve

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
    """

    config: Config
    loaded: LoadedConfig
    resolved: tuple[Resolved, ...]
    ranks: Ranks
    launch: Launch
    device: torch.device

    @property
    def speaks(self) -> bool:
        """Whether this rank prints and writes files: rank 0 alone does."""
        return self.ranks.world.rank == 0

    def weights(self) -> WeightSource:
        """An empty store for one network's parameters: sharded over the data axis under fsdp."""
        if self.config.parallel.fsdp:
            return ShardedWeights(self.ranks.data)
        return OneRankWeights()


def open_session(loaded: LoadedConfig, launch: Launch) -> Session:
    """Join the other ranks, apply the patches, and settle every `auto`.

    Raises:
        ConfigError: the config asks for ranks or a device that are not there.
        PatchError: auto_LiRPA is missing or not the version the patches are written for.
        RankMismatchError: the ranks disagree about the config or the patches.
    """
    facts = Facts(cuda_available=torch.cuda.is_available(), num_ranks=launch.world_size)
    config, resolved = resolve(loaded.config, facts, loaded.origins)
    device = torch.device("cpu")
    if config.general.device == "cuda":
        device = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(device)
    _make_repeatable(config)
    registry.apply()
    if launch.rank == 0:
        logger.info("auto_LiRPA: %d patches applied", len(registry.applied()))
    mesh = Mesh(launch.world_size, int(config.parallel.tp), launch.rank)
    backend = config.parallel.backend
    ranks = start(mesh, backend, config.parallel.timeout)
    ranks.world.agree_same("the configuration", loaded.hash)
    ranks.world.agree_same("the patches of auto_LiRPA", ",".join(sorted(registry.applied())))
    ranks.world.agree_same("the version of torch", torch.__version__)
    ranks.world.agree_same("the version of Python", sys.version)
    return Session(config, loaded, resolved, ranks, launch, device)


def _make_repeatable(config: Config) -> None:
    torch.manual_seed(config.general.seed)
    # TF32 keeps 10 bits of the mantissa: bounds would round far beyond what they claim.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if config.general.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
