"""What steers the computation of bounds; none of it may change what a bound claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from auto_LiRPA_patches.sharding.row_share import RowShare


def never(ahead_seconds: float = 0.0) -> bool:
    """A clock that never runs out."""
    return False


def unheard(sentence: str) -> None:
    """Listen to nothing."""


@dataclass(frozen=True, kw_only=True)
class BoundOptions:
    """How bounds are computed.

    Attributes:
        chunk_rows: at most so many rows per backward pass (`solver.crown.batch_size`).
        memory_bytes: estimated coefficient bytes one backward pass may hold; None = no limit.
            Equal on all ranks.
        alpha_bytes: what α of inner rows may take on a rank, its gradient and the optimiser's state
            included; where it would take more, the functionals' α alone is optimised. None = no
            limit. Equal on all ranks.
        tile_rows: rows are computed in zero-padded tiles of exactly this height, so that their
            bits depend neither on `chunk_rows` nor on which rows are computed together
            (`general.deterministic`, `bab.force_synchronous`); None = off.
        sparse_rows: bound only the neurons the cheaper bounds leave unstable
            (`general.sparse_interm`).
        sparse_alpha: keep α only for neurons that are unstable (`general.sparse_alpha`).
        intermediate: `crown`, or `ibp` for CROWN-IBP.
        reached: per node a mask ``[N]`` of the elements that matter to what is asked of the
            network; the others keep interval bounds (`engine.reach`). Equal on all ranks.
        row_share: the ranks that divide the rows of each node among them, with coefficients and α
            (`parallel.shard_specs`); all make the same calls with the same arguments.
        alone: no other rank takes part in a backward pass: weights are whole on this rank, and no
            layer is split by neuron. Then a pass that runs out of memory is repeated in halves.
        told: called with a sentence for the record when something happened that the result does
            not show, such as memory that ran out.
        out_of_time: asked between steps whether the clock runs out within so many seconds from
            now; the same answer on all ranks.
        progress: called with a short sentence as long steps advance.
    """

    chunk_rows: int = 1_000_000_000
    memory_bytes: int | None = None
    alpha_bytes: int | None = None
    tile_rows: int | None = None
    sparse_rows: bool = True
    sparse_alpha: bool = True
    intermediate: str = "crown"
    reached: Mapping[int, Tensor] = field(default_factory=dict)
    row_share: RowShare = RowShare.alone()
    alone: bool = True
    told: Callable[[str], None] = unheard
    out_of_time: Callable[[float], bool] = never
    progress: Callable[[str], None] | None = None

    @property
    def share(self) -> RowShare:
        """How rows are divided: as `row_share` says, whole tiles where there are any."""
        return self.row_share.in_tiles(self.tile_rows)


@dataclass(frozen=True, kw_only=True)
class AlphaOptions:
    """How α is optimised (`solver.alpha-crown.*`).

    Attributes:
        iterations: gradient steps.
        learning_rate: Adam's initial step, in units of α.
        decay: factor on the step after each iteration.
        patience: stop after so many iterations without a better bound (`early_stop_patience`).
        early_stop: stop as soon as no row is open, or patience is exhausted.
        final_first: so many steps before the others, at most, optimise the specification's α alone
            over fixed intermediate bounds. They cost little, and prove what is nearly proven.
        saturation: stop when the last steps gained less than this share of the whole gain.
        keep_inner: also return the α of intermediate bounds, which takes as much memory as they.
    """

    iterations: int = 100
    learning_rate: float = 0.1
    decay: float = 0.98
    patience: int = 10
    early_stop: bool = True
    final_first: int = 0
    saturation: float = 0.0
    keep_inner: bool = False
