"""Decide a region by bounds alone: IBP, CROWN-IBP, CROWN, α-CROWN.

`proven` is a theorem up to floating point: no point of the region's box satisfies any clause.
Not proven means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.errors import OutOfTimeError
from auto_LiRPA_patches.engine.forward import (
    forward_relaxations,
    functional_forms,
    most_symbols,
)
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.inner_bounds import InnerRows
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.reach import reached
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import (
    crown_bounds,
    crown_relaxations,
    elements_to_bound,
    interval_rows,
)
from auto_LiRPA_patches.errors import MemoryRanOutError
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bounds.input_box import input_box
from complete_verifier.bounds.output_rows import output_rows
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.rounding import coefficient_rounding, rounding_allowance
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Region


@dataclass(frozen=True)
class RegionBounds:
    """What was found about one region.

    Attributes:
        proven: every clause is impossible over the box.
        crown: margin (lower bound minus right-hand side) per constraint, in the order of the
            clauses' rows, by the method's first pass; empty if time ran out before. A proof needs
            more than zero: see `rounding_allowance`.
        alpha_crown: the same after α-CROWN; empty where it did not run.
        worst_margin: the best bounds' margin of the clause nearest to being possible; None where
            nothing was bounded.
        iterations: α steps taken.
        timed_out: the clock ended the work early.
        starved: what did not fit into which rank's memory; empty where all did.
        root: where branching can start, if something is left open.
    """

    proven: bool
    crown: tuple[float, ...] = ()
    alpha_crown: tuple[float, ...] = ()
    worst_margin: float | None = None
    iterations: int = 0
    timed_out: bool = False
    starved: str = ""
    root: Root | None = None


def verify_region(network: Network, region: Region, settings: BoundSettings) -> RegionBounds:
    """Bound every functional of the region's clauses and say what follows.

    Args:
        network: the network; its weights may be sharded.
        region: box and unsafe set; a box without any point is proven at once.
        settings: method and effort.

    Raises:
        NonFiniteBoundError, SoundnessError: the bounds prove nothing, and say why.
    """
    return RegionVerification(network, region, settings).finish()


@dataclass(frozen=True, eq=False)
class _FirstPass:
    """CROWN's (or IBP's) part of a region's bounds.

    Attributes:
        state: the relaxations.
        lower: ``[S]`` float64, `slack` taken off.
        slack: ``[S]`` what rounding may account for: coefficients and arithmetic.
        allowance: ``[S]`` the arithmetic's part.
        excluded: ``[num_clauses]``.
        margins: ``[K]`` as they are reported.
        worst_margin: of the clause nearest to being possible, as it is reported.
    """

    state: Relaxations
    lower: np.ndarray
    slack: np.ndarray
    allowance: np.ndarray
    excluded: np.ndarray
    margins: tuple[float, ...]
    worst_margin: float


class RegionVerification:
    """One region's bounds in two steps, the cheap one first, so that other work can go between."""

    def __init__(self, network: Network, region: Region, settings: BoundSettings) -> None:
        self.settings = settings
        self.region = region
        self.graph: Graph = network.graph
        self.rows = output_rows(region.clauses, network.num_outputs)
        self.box = input_box(network.graph, region)
        self.matrix = self.rows.matrix(self.box.lower)
        self._known: RegionBounds | None = None
        self._pass: _FirstPass | None = None
        if self.rows.num_clauses == 0 or (region.is_empty and not region.windowed):
            self._known = RegionBounds(proven=True)
        elif region.windowed or self.rows.num_rows == 0:
            self._known = RegionBounds(proven=False)

    def first(self) -> RegionBounds:
        """Bounds without optimisation. Calling it again costs nothing.

        Raises:
            NonFiniteBoundError, SoundnessError: the bounds prove nothing, and say why.
        """
        if self._known is None and self._pass is None:
            try:
                self._pass = self._bound()
            except OutOfTimeError:
                self._known = RegionBounds(proven=False, timed_out=True)
            except MemoryRanOutError as error:
                if not self.settings.starves_together:
                    raise
                self._known = RegionBounds(proven=False, starved=str(error))
        if self._pass is None:
            return self._known or RegionBounds(proven=False)
        return RegionBounds(
            proven=bool(self._pass.excluded.all()),
            crown=self._pass.margins,
            worst_margin=self._pass.worst_margin,
        )

    def remaining(self) -> Region:
        """The region without the clauses that the first bounds exclude."""
        if self.first().proven:
            return replace(self.region, clauses=())
        if self._pass is None:
            return self.region
        pairs = zip(self.region.clauses, self._pass.excluded, strict=True)
        return replace(self.region, clauses=tuple(clause for clause, gone in pairs if not gone))

    def finish(self) -> RegionBounds:
        """The best bounds the settings allow, with the root for branching if they leave it open.

        Raises:
            NonFiniteBoundError, SoundnessError: the bounds prove nothing, and say why.
        """
        first = self.first()
        found = self._pass
        if first.proven or found is None:
            return first
        try:
            return self._improved(found)
        except MemoryRanOutError as error:
            if not self.settings.starves_together:
                raise
            return replace(first, starved=str(error))

    def _improved(self, found: _FirstPass) -> RegionBounds:
        """What α-CROWN makes of the first bounds, and the root for branching."""
        if self.settings.method == "alpha-crown" and self.settings.alpha.iterations > 0:
            return self._alpha(found)
        alphas = found.state.initial_alphas(self.rows.num_rows)
        inner = self._inner_rows(found.state) if self.settings.alpha.keep_inner else ()
        root = self._root(
            found.state, found.state.bounds, alphas, (found.lower, found.slack), inner
        )
        return RegionBounds(
            proven=False, crown=found.margins, worst_margin=found.worst_margin, root=root
        )

    def _bound(self) -> _FirstPass:
        settings = self.settings
        if settings.method == "ibp":
            state = Relaxations(self.graph, self.box)
            lower = interval_rows(state, self._spec(self.matrix))
        elif settings.method.startswith("forward"):
            state, lower = self._forward()
        else:
            settings = self._only_what_counts()
            state = crown_relaxations(self.graph, self.box, settings.bounds)
            lower = crown_bounds(state, self._spec(self.matrix), settings.bounds)
            # Lines over wide intervals can be looser than the intervals themselves.
            lower = torch.fmax(lower, interval_rows(state, self._spec(self.matrix)))
        output = state.interval(self.graph.output)
        coefficients = coefficient_rounding(self.rows, self.matrix, output)[:, 0]
        first = lower[:, 0].double().cpu().numpy() - coefficients
        allowance = rounding_allowance(state, self.matrix, lower, settings.bounds)
        return _FirstPass(
            state=state,
            lower=first - allowance,
            slack=coefficients + allowance,
            allowance=allowance,
            excluded=self.rows.excluded(first - allowance, settings.threshold),
            margins=tuple(self.rows.margins(first).tolist()),
            worst_margin=self.rows.worst_margin(first),
        )

    def _only_what_counts(self) -> BoundSettings:
        """From now on neurons that no functional depends on are left to interval bounds."""
        wanted = reached(self.graph, self.matrix)
        bounds = replace(self.settings.bounds, reached=wanted)
        self.settings = replace(self.settings, bounds=bounds)
        return self.settings

    def _forward(self) -> tuple[Relaxations, Tensor]:
        """Relaxations made forwards, and lower bounds ``[S, 1]`` of the functionals."""
        options = self.settings.bounds
        symbols = most_symbols(self.graph, self.box.lower.shape[0], options)
        state, form = forward_relaxations(self.graph, self.box, symbols)
        lower = functional_forms(form, self.matrix, self.box).lower
        lower = torch.fmax(lower, interval_rows(state, self._spec(self.matrix)))
        if self.settings.method == "forward+crown":
            lower = torch.fmax(lower, crown_bounds(state, self._spec(self.matrix), options))
        return state, lower

    def _alpha(self, found: _FirstPass) -> RegionBounds:
        state, first, slack = found.state, found.lower, found.slack
        wanted = np.ones(self.rows.num_rows, dtype=bool)
        if self.settings.prune_after_crown:
            wanted = self.rows.rows_of_open_clauses(found.excluded)
        kept = np.flatnonzero(wanted)
        best = first.copy()

        def open_rows(lower: Tensor) -> Tensor:
            best[kept] = np.fmax(first[kept], lower[:, 0].double().cpu().numpy() - slack[kept])
            still_open = self.rows.rows_of_open_clauses(
                self.rows.excluded(best, self.settings.threshold)
            )
            return torch.from_numpy(still_open[kept]).to(lower.device).unsqueeze(1)

        result = optimize_alpha(
            state,
            self._spec(self.matrix[torch.from_numpy(kept)]),
            open_rows,
            self.settings.bounds,
            self.settings.alpha,
        )
        open_rows(result.lower)
        proven = bool(self.rows.excluded(best, self.settings.threshold).all())
        root = None
        if not proven:
            alphas = state.initial_alphas(self.rows.num_rows)
            places = torch.from_numpy(kept).to(self.box.lower.device)
            for index, alpha in result.alphas.items():
                alphas[index] = alphas[index].index_copy(1, places, alpha)
            inner = tuple(InnerRows(node, *rows) for node, rows in sorted(result.inner.items()))
            root = self._root(state, result.bounds, alphas, (best, slack), inner)
        return RegionBounds(
            proven=proven,
            crown=found.margins,
            alpha_crown=tuple(self.rows.margins(best + found.allowance).tolist()),
            worst_margin=self.rows.worst_margin(best + found.allowance),
            iterations=result.iterations,
            timed_out=result.timed_out and not proven,
            root=root,
        )

    def _inner_rows(self, state: Relaxations) -> tuple[InnerRows, ...]:
        """Neurons worth bounding anew, with CROWN's slopes for their rows."""
        found = []
        for node in self.graph.bounded:
            elements = elements_to_bound(self.graph, node, state.interval(node), BoundOptions())
            if node in self.graph.interval_exact or elements.numel() == 0:
                continue
            alphas = state.initial_alphas(2 * elements.shape[0], below=node)
            found.append(InnerRows(node, elements, alphas))
        return tuple(found)

    def _root(
        self,
        state: Relaxations,
        bounds: Mapping[int, Interval],
        alphas: Mapping[int, Tensor],
        margins: tuple[np.ndarray, np.ndarray],
        inner: tuple[InnerRows, ...],
    ) -> Root:
        """Where branching starts; `margins` are the lower bounds and their slack."""
        lower, slack = margins
        for node in self.graph.bounded:
            state.interval(node)
        return Root(
            graph=self.graph,
            box=self.box,
            features=dict(state.features),
            bounds={
                node: bounds[node] if node in bounds else state.bounds[node]
                for node in self.graph.bounded
            },
            alphas=alphas,
            rows=self.rows,
            lower=lower,
            slack=slack,
            excluded=self.rows.excluded(lower, self.settings.threshold),
            inner=inner,
        ).without_inactive()

    def _spec(self, matrix: Tensor) -> SpecRows:
        return SpecRows(matrix.view(-1, *self.graph.output_shape))
