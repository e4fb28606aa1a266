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
from typing import NoReturn

from torch import Tensor

from auto_LiRPA_patches.errors import MemoryRanOutError
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

    @classmethod
    def alone(cls) -> RowShare:
        """All rows are this rank's."""
        return cls(Communicator.single("rows"))

    def in_tiles(self, tile_rows: int | None) -> RowShare:
        """The same ranks, dividing whole tiles; None = any number of rows."""
        return RowShare(self.communicator, tile_rows)

    def agree_any(self, condition: bool) -> bool:
        """Whether `condition` holds on one of the ranks, which all ask."""
        return self.communicator.agree_any(condition)

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

    def gather(self, own: Tensor, what: str) -> Tensor:
        """All ranks' rows of `what`, which names them: ranks compare names and sizes first.

        Two ranks that gathered equally many rows of different nodes would get mixed bounds and no
        error: a proof about no network.

        ========  ======================  ===========================================
        name      on each rank            meaning
        ========  ======================  ===========================================
        own       [sizes[rank], *rest]    this rank's rows
        returns   [sum(sizes), *rest]     all rows in order, bit for bit; replicated
        ========  ======================  ===========================================

        The adjoint hands each rank its rows of the sum of all ranks' gradients. In tiles that sum
        has been made already (`among_tiles`), and the gradient is the same on all ranks.

        Raises:
            RanksDisagreeError: on every rank, if they come here for different rows.
            MemoryRanOutError: on every rank, if one called `give_up` instead.
        """
        self._meet(what, gave_up=False)
        if self.tile_rows is None:
            return gather_rows(self.communicator, own, self.sizes)
        return gather_rows_of_whole(self.communicator, own, self.sizes)

    def give_up(self, what: str) -> NoReturn:
        """Instead of `gather`, where this rank's rows did not fit into its memory.

        Raises:
            MemoryRanOutError: on every rank, those in `gather` included.
        """
        self._meet(what, gave_up=True)
        raise AssertionError("unreachable: a rank that gives up is heard by itself")

    def _meet(self, what: str, *, gave_up: bool) -> None:
        purpose = f"{what}, rows {self.sizes}"
        answers = self.communicator.all_gather_integers(purpose, [int(gave_up)])
        lost = [rank for rank, (answer,) in enumerate(answers) if answer]
        if lost:
            raise MemoryRanOutError(
                f"{what}: bounds do not fit into the memory of rank {lost[0]} "
                f"({self.sizes[lost[0]]} rows). Use more ranks, or a machine with more memory."
            )

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
