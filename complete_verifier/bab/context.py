"""What branch and bound needs of the run around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.search import Confirm
from complete_verifier.bab.batch_size import BatchSize
from complete_verifier.bab.finds import Finds
from complete_verifier.bab.partners import Partners
from complete_verifier.model.network import Network
from complete_verifier.specification import Region


@dataclass(frozen=True, kw_only=True)
class BabSettings:
    """Effort and manner (`solver.*`, `bab.*`).

    Attributes:
        batch_size: most subproblems that a round splits; it bounds their children.
        enlarge: whether the batch may grow (`solver.auto_enlarge_batch_size`).
        min_batch_ratio: fraction of the batch below which several neurons are split at once.
        worst_first: take the worst bound first (`tree_traversal: breadth_first`).
        sort_interval: rounds after which a depth-first pool is sorted by bounds; None = never.
        max_domains, max_iterations: limits; None = none.
        beta: optimisation of α and β.
        inner: optimisation of inner neurons' bounds in every subproblem; None = the root's bounds
            serve all (`bab.recompute_interm`, `solver.beta-crown.enable_opt_interm_bounds`).
        method: branching heuristic, `bab.branching.method`.
        point_method: how the point of a split is chosen where there is no kink: uniform or opt
            (`bab.branching.nonlinear_split.branching_point_method`).
        candidates: neurons kfsb and fsb try, `bab.branching.candidates`.
        reduceop: how the two children's bounds become a candidate's score: min, max or mean.
        synchronous: `bab.force_synchronous`: the same work with the same bits, whatever else runs.
            The batch stays as it is and is taken in the order of bounds, no optimisation ends
            early or drops subproblems, and products are made in tiles.
        tile_size: subproblems of such a tile, `bab.tile_size`, rounded down to a multiple of 16;
            bits depend on it.
        threshold: margin a proof must exceed.
        seed: of `method: random`.
    """

    batch_size: int = 64
    enlarge: bool = True
    min_batch_ratio: float = 0.1
    worst_first: bool = True
    sort_interval: int | None = None
    max_domains: float = float("inf")
    max_iterations: int | None = None
    beta: BetaOptions = BetaOptions()
    inner: BetaOptions | None = None
    method: str = "kfsb"
    point_method: str = "uniform"
    candidates: int = 3
    reduceop: str = "min"
    synchronous: bool = False
    tile_size: int = 128
    threshold: float = 0.0
    seed: int = 100

    @property
    def by_bound(self) -> bool:
        """Whether the pool is ordered by bounds; the other order depends on what came before."""
        return self.worst_first or self.synchronous

    @property
    def own_beta(self) -> BetaOptions:
        """The optimisation, without what `synchronous` forbids."""
        return replace(self.beta, prune_ratio=None) if self.synchronous else self.beta

    def first_batch(self) -> BatchSize:
        """The batch of the first round."""
        return BatchSize(
            size=self.batch_size,
            may_grow=self.enlarge and not self.synchronous,
            min_children=self.min_batch_ratio * self.batch_size,
        )


def _all_of_it() -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class BabContext:
    """The run around one region's branch and bound.

    Attributes:
        network: the network (weights may be sharded: every call is made by all ranks alike).
        region: box and unsafe set; of several that are searched together, any one (`about`).
        bounds: chunks, memory limit, clock and progress. `bounds.out_of_time()` is asked within a
            round: where ranks compute in step, a collective with one answer for all.
        confirm: replays a candidate with onnxruntime. No collective where subproblems are shared:
            ranks have other candidates. Otherwise the same answer on all ranks.
        partners: the ranks that share the subproblems.
        pool_limit_bytes: most memory open subproblems may take on a rank.
        memory_used: largest share of the device's memory taken so far; the same answer on all
            ranks. 1 where a larger batch gains nothing, as on CPUs.
    """

    network: Network
    region: Region
    bounds: BoundOptions
    confirm: Confirm
    partners: Partners = field(default_factory=Partners.alone)
    pool_limit_bytes: float = float("inf")
    memory_used: Callable[[], float] = _all_of_it

    def about(self, region: Region) -> BabContext:
        """The run around another region."""
        return replace(self, region=region)

    def out_of_time(self) -> bool:
        """Whether the clock has run out; see `bounds`."""
        return self.bounds.out_of_time(0.0)

    def finds(self) -> Finds:
        """A fresh place for counterexamples of this region."""
        return Finds(lambda point: self.confirm(self.region, point), go_on=self.partners.in_step)

    def say(self, text: str) -> None:
        """Report progress."""
        if self.bounds.progress is not None:
            self.bounds.progress(text)

    def try_points(self, points: np.ndarray) -> Counterexample | None:
        """Confirm the first point that violates the region in this network's own outputs.

        Args:
            points: ``[n, num_inputs]``; rounded to float32 inside the box.
        """
        best, margins = self.closest(points, 1)
        if not (margins <= 0).any():
            return None
        return self.confirm(self.region, best[0])

    @cached_property
    def _search_box(self) -> SearchBox | None:
        return SearchBox.of(self.region)

    def closest(self, points: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The points nearest to a violation by this network's own outputs.

        Args:
            points: ``[n, num_inputs]``; rounded to float32 inside the box.
            count: most points that are returned.

        Returns:
            ``[m, num_inputs]`` float32 inside the box, m <= count, and their margins ``[m]``
            ascending; at most 0 is a violation. None where the box holds no float32 point.
        """
        box = self._search_box
        if box is None or points.shape[0] == 0:
            return points[:0].astype(np.float32), np.zeros(0)
        inside = np.clip(points.astype(np.float32), box.lower, box.upper)
        with torch.no_grad():
            outputs = self.network.forward(torch.from_numpy(inside))
        margins = self.region.margins(outputs.cpu().numpy())
        order = np.argsort(margins, kind="stable")[:count]
        return inside[order], margins[order]
