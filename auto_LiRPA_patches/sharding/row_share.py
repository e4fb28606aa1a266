"""Divide the rows of backward passes among the ranks of one axis, and put their bounds together.

Rows in row order go to ranks in rank order, so that gathering restores the order. The rows of one
start node cost the same (coefficients are dense below it), those of different nodes do not: which
ranks take one row more than others is decided so that what they hold of all nodes is even.

In tiles, ranks take whole tiles, and gradients are added tile by tile in the tiles' order over all
ranks: neither a bound nor a gradient has bits that depend on how many ranks there are. Otherwise
each rank adds up its own first, which rounds differently.

R in the tables of this module is the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from auto_LiRPA_patches.sharding.collectives import (
    Communicator,
    gather_rows,
    gather_rows_of_whole,
    share_among_tiles,
)


@dataclass(frozen=True)
class RowNeed:
    """The rows of one start node.

    Attributes:
        rows: how many.
        cost: of one of them, in any unit that all nodes share.
    """

    rows: int
    cost: int = 1


@dataclass(frozen=True)
class RowShare:
    """The ranks among which rows are divided.

    Attributes:
        communicator: their group; all of them make the same calls.
        tile_rows: ranks take whole tiles of this height; None = any number of rows.
    """

    communicator: Communicator
    tile_rows: int | None = None

    def split(self, rows: int) -> RowSplit:
        """Divide the rows of one node as evenly as tiles allow."""
        (split,) = self.split_all([RowNeed(rows)])
        return split

    def split_all(self, needs: Sequence[RowNeed]) -> list[RowSplit]:
        """Divide the rows of several nodes, all of which are held at the same time.

        Of each node every rank gets the same number of tiles (or rows), or one more: those get it
        that have the least of the nodes before. So no rank waits longer for another than one tile
        takes, and none holds more than another but for about a tile of the costliest node.
        """
        unit = self.tile_rows or 1
        held = [0] * self.communicator.size
        splits = []
        for need in needs:
            each, left = divmod(-(-need.rows // unit), len(held))
            poorest = sorted(range(len(held)), key=lambda rank: (held[rank], rank))[:left]
            sizes, start = [], 0
            for rank in range(len(held)):
                tiles = each + (rank in poorest)
                held[rank] += tiles * unit * need.cost
                stop = min(start + tiles * unit, need.rows)
                sizes.append(stop - start)
                start = stop
            splits.append(RowSplit(self.communicator, tuple(sizes), self.tile_rows))
        return splits


@dataclass(frozen=True)
class RowSplit:
    """How the rows of one node are divided.

    Attributes:
        communicator: the ranks.
        sizes: R integers, the rows of each rank; none is legal.
        tile_rows: height of a tile; None = not in tiles.
    """

    communicator: Communicator
    sizes: tuple[int, ...]
    tile_rows: int | None = None

    @property
    def start(self) -> int:
        """This rank's first row."""
        return sum(self.sizes[: self.communicator.rank])

    @property
    def stop(self) -> int:
        """The row behind this rank's last one."""
        return self.start + self.sizes[self.communicator.rank]

    @property
    def most(self) -> int:
        """The rows of the rank that has most: what all ranks' schedules are made for."""
        return max(self.sizes)

    def gather(self, own: Tensor) -> Tensor:
        """All ranks' rows.

        ========  ======================  ===========================================
        name      on each rank            meaning
        ========  ======================  ===========================================
        own       [sizes[rank], *rest]    this rank's rows
        returns   [sum(sizes), *rest]     all rows in order, bit for bit; replicated
        ========  ======================  ===========================================

        The adjoint hands each rank its rows of the sum of all ranks' gradients. In tiles that sum
        has been made already (`among_tiles`), and the gradient is the same on all ranks.
        """
        if self.tile_rows is None:
            return gather_rows(self.communicator, own, self.sizes)
        return gather_rows_of_whole(self.communicator, own, self.sizes)

    def among_tiles(self, tensors: Sequence[Tensor], chunks: int) -> list[tuple[Tensor, ...]]:
        """What every chunk of this rank's rows, a tile, is to compute with instead of `tensors`.

        Aliases of its own, whose adjoint adds up the chunks' gradients in the order of all ranks'
        tiles.

        Args:
            tensors: replicated.
            chunks: this rank's, tiles first; those beyond its tiles are empty.

        Raises:
            ValueError: rows are not divided by tiles.
        """
        if self.tile_rows is None:
            raise ValueError("among_tiles: these rows are not computed in tiles")
        tiles = [-(-size // self.tile_rows) for size in self.sizes]
        return share_among_tiles(self.communicator, tensors, tiles, chunks)
