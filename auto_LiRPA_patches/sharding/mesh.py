"""Describe where one rank stands on the 2-D grid of ranks (data, tp).

Plain arithmetic on integers: no process group, no torch. A mesh can therefore be built and tested
for any rank of any world in one process.

Layout: `tp` varies fastest, so the ranks of one tensor-parallel group are neighbours and share a
host wherever the host holds at least `tp` ranks::

    world_size 6, tp 2          tp_rank 0   tp_rank 1
                  data_rank 0        0           1
                  data_rank 1        2           3
                  data_rank 2        4           5
"""

from __future__ import annotations

from dataclasses import dataclass

from auto_LiRPA_patches.errors import VerifierError


class MeshError(VerifierError):
    """The ranks that exist cannot be arranged as the configuration asks."""


@dataclass(frozen=True)
class Mesh:
    """One rank's place on the (data, tp) grid.

    Raises:
        MeshError: if a size is below one, `tp` does not divide `world_size`, or `rank` is outside.
    """

    world_size: int
    """Ranks in all; equals `data * tp`."""
    tp: int
    """Ranks that share one wide layer (axis "tp")."""
    rank: int
    """This process, counted from 0 over the whole world."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise MeshError(
                f"mesh: expected world_size >= 1, got {self.world_size}. Start at least one rank."
            )
        if self.tp < 1:
            raise MeshError(
                f"mesh: expected parallel.tp >= 1, got {self.tp} (world_size {self.world_size}). "
                "Set it to 1 for no tensor parallelism."
            )
        if self.world_size % self.tp != 0:
            raise MeshError(
                f"mesh: expected a world_size divisible by parallel.tp, got world_size "
                f"{self.world_size} and tp {self.tp} (remainder {self.world_size % self.tp}). "
                "Start another number of ranks, or choose a tp that divides it."
            )
        if not 0 <= self.rank < self.world_size:
            raise MeshError(
                f"mesh: expected 0 <= rank < world_size, got rank {self.rank} "
                f"and world_size {self.world_size}. Check RANK and WORLD_SIZE in the environment."
            )

    @classmethod
    def one_rank(cls) -> Mesh:
        """Return the mesh of a process that works alone."""
        return cls(world_size=1, tp=1, rank=0)

    @property
    def data(self) -> int:
        """Size of axis "data": ranks that share weights, rows and subproblems."""
        return self.world_size // self.tp

    @property
    def data_rank(self) -> int:
        """This rank's position on axis "data", in [0, data)."""
        return self.rank // self.tp

    @property
    def tp_rank(self) -> int:
        """This rank's position on axis "tp", in [0, tp)."""
        return self.rank % self.tp

    @property
    def data_ranks(self) -> tuple[int, ...]:
        """Global ranks of this rank's data group, by data rank."""
        return tuple(range(self.tp_rank, self.world_size, self.tp))

    @property
    def tp_ranks(self) -> tuple[int, ...]:
        """Global ranks of this rank's tensor-parallel group, by tp rank."""
        first = self.data_rank * self.tp
        return tuple(range(first, first + self.tp))

    def at(self, rank: int) -> Mesh:
        """Return the same grid as `rank` sees it."""
        return Mesh(world_size=self.world_size, tp=self.tp, rank=rank)
