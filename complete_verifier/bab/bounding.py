"""Bound batches of subproblems of one region."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.chunks import row_elements
from auto_LiRPA_patches.engine.descent import optimize_subproblems
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems, relu_like
from complete_verifier.bab.cuts import Cuts
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.inner import InnerBounding
from complete_verifier.bab.multipliers import collect, spread
from complete_verifier.bab.partners import Partners
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.rounding import allowance_of

# Most memory for a tile of subproblems where bits must not depend on the batch.
_TILE_BYTES = 1 << 28

# Into how many tiles a round is cut at least, and how low they may get: below it, what is done once
# per tile takes longer than what is done for its subproblems.
_FEWEST_TILES = 4
_LOWEST_TILE = 16

# What is done once per step, counted in products with a weight; and passes over an element.
_STEP_WORK = 1 << 25
_ELEMENT_WORK = 10
_ANY_NUMBER = 1 << 40
_ECONOMY = 8

# Most passes made as one; in tiles, as many as take no more memory than a tile's optimisation.
_MOST_PASSES = 8
_MOST_PASSES_IN_TILES = 3

# Coefficients, their gradients, α with two moments and a best copy, and lines, per element.
_COPIES = 12


@dataclass(frozen=True, eq=False)
class OpenClauses:
    """The clauses still to be excluded, S rows each.

    Attributes:
        index: ``[O]`` row of each clause and place, ``[O, S]`` into the root's functionals.
        matrix: ``[O, S, num_outputs]`` coefficients.
        thresholds: ``[O, S]`` float64; a lower bound above one excludes the clause.
    """

    index: Tensor
    matrix: Tensor
    thresholds: Tensor

    @staticmethod
    def of(root: Root, threshold: float) -> OpenClauses:
        """Collect the clauses the root did not exclude; shorter ones repeat their last row."""
        rows = root.rows
        used = [np.flatnonzero(rows.clause_of == c) for c in np.flatnonzero(~root.excluded)]
        width = max(len(own) for own in used)
        places = np.stack([np.pad(own, (0, width - len(own)), mode="edge") for own in used])
        index = rows.row_of[places]
        limits = rows.rhs[places] + root.slack[index] + threshold
        limits = np.where(rows.strict[places], np.nextafter(limits, -np.inf), limits)
        full = rows.matrix(root.box.lower)
        chosen = torch.from_numpy(index).to(full.device)
        return OpenClauses(chosen, full[chosen], torch.from_numpy(limits).to(full.device))


@dataclass(frozen=True)
class _Work:
    """How one batch is optimised; see `Bounding.optimize`."""

    options: BetaOptions
    stop_early: bool
    in_place: bool


class Bounding:
    """Bounds subproblems with α and β in batches that fit into memory.

    With `in_tiles`, a subproblem's bits do not depend on which others are bounded beside it, nor
    on the memory at hand (`bab.force_synchronous`).
    """

    def __init__(
        self,
        root: Root,
        features: Features,
        clauses: OpenClauses,
        options: BoundOptions,
        *,
        in_tiles: bool = False,
        tile_size: int = 128,
        inner: BetaOptions | None = None,
        partners: Partners | None = None,
    ) -> None:
        """Prepare.

        Args:
            options: memory and clock.
            tile_size: subproblems of a tile, fewer where a network is so large that the memory for
                one would not hold them.
            inner: how inner neurons are bounded anew in every subproblem; None = they are not.
            partners: where they compute in step, all bound equally many subproblems in one call,
                and optimise until none has an open row; None = nobody else.
        """
        self.root = root
        self.features = features
        self.clauses = clauses
        self.options = options
        self.in_tiles = in_tiles
        self.tile_size = self.height = tile_size
        self.partners = Partners.alone() if partners is None else partners
        self.inner: InnerBounding | None = None
        if inner is not None and root.inner:
            # In tiles all rows are bounded, which is the same number on every rank.
            every = in_tiles or self.partners.in_step
            self.inner = InnerBounding(root.inner, inner, options, every)

    def undivided(self) -> DomainBatch:
        """One subproblem per open clause, not split yet, with the root's bounds and slopes."""
        root, index = self.root, self.clauses.index
        count, width = index.shape
        table = root.box.lower.new_zeros(root.rows.num_rows, 0)
        if self.features.spans:
            table = self.features.join_alphas(root.alphas)[:, 0]
        # `thresholds` already hold the slack that `root.lower` has taken off.
        lower = torch.from_numpy(root.lower + root.slack)[index.cpu()]
        clause = torch.arange(count)
        return DomainBatch(
            clause=clause,
            path=clause + 1,
            depth=torch.zeros(count, dtype=torch.int64),
            splits=torch.zeros(count, 0, dtype=torch.int32),
            points=torch.zeros(count, 0, dtype=table.dtype),
            betas=torch.zeros(count, width, 0, dtype=table.dtype),
            alphas=table[index].cpu(),
            ranges=self.root_ranges(count),
            margin=(lower - self.clauses.thresholds.cpu()).amax(dim=1),
        )

    def signs(self, batch: DomainBatch) -> Tensor:
        """``[B, T]``: +1, -1 for split features, 0 for the others; bounds' dtype."""
        like = self.root.box.lower
        table = torch.zeros(
            batch.count, self.features.total + 1, dtype=like.dtype, device=like.device
        )
        splits = batch.splits.to(like.device).long()
        table.scatter_(1, splits.abs(), splits.sign().to(like.dtype))
        return table[:, 1:]

    def subproblems(self, batch: DomainBatch, signs: Tensor) -> Subproblems:
        """The engine's view of a batch."""
        root, features = self.root, self.features
        like = root.box.lower
        clause = batch.clause.to(like.device)
        rows = self.clauses.matrix[clause].transpose(0, 1)  # [S, B, O]
        cuts = self.cuts(batch)
        alphas = batch.alphas.to(like.device).transpose(0, 1)  # [S, B, A]
        signs_of = features.split(signs)
        return Subproblems(
            graph=root.graph,
            box=root.box,
            features=root.features,
            rows=rows.reshape(*rows.shape[:2], *root.graph.output_shape),
            bounds=features.bounds(signs, cuts, self.ranges(batch)),
            signs={s.activation: signs_of[s.activation] for s in features.spans if s.kink == 0},
            alphas=features.split_alphas(alphas),
            betas=spread(features, batch, like),
            cuts={
                span.activation: cuts.constraints(span.own.start, span.own.stop)
                for span in features.spans
                if cuts is not None and span.kink is None
            },
            fixed_alphas=self._fixed_alphas(clause),
        )

    def _fixed_alphas(self, clause: Tensor) -> dict[int, Tensor]:
        """The root's α ``[K, S, B, F]`` of relaxed nodes that are not split."""
        spans = {span.activation for span in self.features.spans}
        if self.root.alphas.keys() <= spans:
            return {}
        rows = self.clauses.index[clause]  # [B, S]
        return {
            index: alpha[:, rows, 0].transpose(1, 2)
            for index, alpha in self.root.alphas.items()
            if index not in spans
        }

    def cuts(self, batch: DomainBatch) -> Cuts | None:
        """The splits at points; None where every activation has a kink."""
        if not self.features.curved:
            return None
        return Cuts.of(batch, self.features.total, self.root.box.lower)

    def ranges(self, batch: DomainBatch) -> Tensor | None:
        """The features' own bounds ``[B, 2, T]``; None where the root's serve all subproblems."""
        if batch.ranges.shape[2] == 0:
            return None
        return batch.ranges.to(self.root.box.lower.device)

    def open(self, batch: DomainBatch, signs: Tensor) -> Tensor:
        """``[B, T]`` bool: features that can be split (further)."""
        ranges = self.ranges(batch)
        is_open = self.features.open(signs, self.cuts(batch), ranges)
        if ranges is not None:
            crosses = (ranges[:, 0] < 0) & (ranges[:, 1] > 0)
            for span in self.features.spans:
                if span.kink is not None:
                    own = slice(span.offset, span.stop)
                    is_open[:, own] &= crosses[:, own]
        return is_open

    def splittable(self, batch: DomainBatch) -> Tensor:
        """``[B, T]`` bool: features each subproblem can be split at."""
        parts = batch.split(self.part_size())
        return torch.cat([self.open(part, self.signs(part)) for part in parts])

    def root_ranges(self, count: int) -> Tensor:
        """``[count, 2, T]`` as the root's subproblems hold them; T = 0 where nothing is renewed."""
        if self.inner is None:
            return self.root.box.lower.new_zeros(count, 2, 0).cpu()
        return self.features.own_bounds(self.root.bounds).expand(count, -1, -1).cpu()

    def thresholds(self, batch: DomainBatch) -> Tensor:
        """``[S, B]`` float64."""
        return self.clauses.thresholds[batch.clause.to(self.clauses.thresholds.device)].T

    def margin(self, batch: DomainBatch, lower: Tensor) -> Tensor:
        """``[B]`` float64: the best row's bound minus its threshold; NaN counts as -inf."""
        margins = lower.double() - self.thresholds(batch)
        return margins.nan_to_num(nan=-torch.inf, posinf=-torch.inf).amax(dim=0)

    def optimize(
        self,
        batch: DomainBatch,
        options: BetaOptions,
        *,
        stop_early: bool,
        in_place: bool = False,
    ) -> DomainBatch:
        """Optimise α and β of a batch; returns it with margins, slopes and multipliers renewed.

        A subproblem's margin never falls below the one it came with (its parent's).

        Args:
            in_place: the slopes of `batch` may be overwritten.
        """
        work = _Work(options, stop_early, in_place)
        parts = [self._optimize_part(part, work) for part in self.parts(batch)]
        found = DomainBatch.concatenate(parts)
        return found if found.count == batch.count else found.first(batch.count)

    def evaluate(self, batch: DomainBatch) -> Tensor:
        """Margins ``[B]`` by one backward pass with the α and β the subproblems came with."""
        margins = []
        with torch.no_grad():
            for part in self.parts(batch):
                problem = self.subproblems(part, self.signs(part))
                margins.append(self.margin(part, problem.lower(problem.relaxations())))
        return torch.cat(margins)[: batch.count]

    def parts(self, batch: DomainBatch) -> list[DomainBatch]:
        """The batch in pieces that fit into memory.

        In tiles, all pieces are equally long; the last subproblem is repeated to fill them, and
        callers drop what exceeds the batch.
        """
        size = self.part_size()
        parts = list(batch.split(size)) if batch.count > size else [batch]
        if self.in_tiles and 0 < parts[-1].count < size:
            index = torch.arange(size).clamp(max=parts[-1].count - 1)
            parts[-1] = parts[-1].select(index)
        return parts

    @cached_property
    def worthwhile(self) -> int:
        """Subproblems of which a step takes about twice as long as what is done once per step.

        With fewer it is hardly shorter. Measured with one thread, ms per step: 1.8, 2.2, 2.5, 3.3,
        4.6 for 8, 16, 32, 64, 128 on a small convolutional network, whose number this says is 107.
        An accelerator is worth any number. The first use is a collective of the ranks that share
        the layers' neurons.
        """
        graph = self.root.graph
        if self.root.box.lower.device.type != "cpu":
            return _ANY_NUMBER
        # Ranks that share a layer's neurons may hold one more or less of them each.
        weights = graph.neurons.group.agree_max(
            sum(share.full_numel for share in graph.weights.share())
        )
        work = weights + _ELEMENT_WORK * row_elements(graph, graph.output)
        return max(1, _STEP_WORK // (work * int(self.clauses.index.shape[1])))

    @property
    def economical(self) -> int:
        """Subproblems of which a step spends a ninth of its time on what is done once per step.

        Fewer at a time take longer apiece: two ranks that shared 512 of mnist-net_256x6 did 1.66
        times what one does, and 1.9 times where each took 512 (measured). No more than what a tile
        may take of the processor's memory.
        """
        wanted = _ECONOMY * self.worthwhile
        if self.root.box.lower.device.type != "cpu":
            return wanted
        return min(wanted, max(1, _TILE_BYTES // self._subproblem_bytes))

    def passes_at_once(self, count: int) -> int:
        """How many backward passes over the same `count` subproblems are worth making as one.

        For clauses of one row; others take one at a time. In tiles it follows from `count` and the
        network. Measured, choosing neurons in 20 rounds of cifar_base_kw img8194: 0.89 s by single
        passes, 0.45 so; 64 subproblems of mnist-net_256x6, 0.45 and 0.25 s.
        """
        if self.in_tiles:
            most, limit = _MOST_PASSES_IN_TILES, _TILE_BYTES // self._subproblem_bytes
        else:
            most, limit = _MOST_PASSES, self.part_size()
        return min(max(1, min(self.economical, limit) // count), most)

    def fit_tiles(self, count: int) -> None:
        """Make tiles low enough to give several ranks some of `count` subproblems.

        They are filled up, so that in the first rounds most of a high tile would be of no use.

        Args:
            count: of all ranks together, so that the bits do not depend on how many there are.
        """
        share = -(-count // _FEWEST_TILES)
        self.height = min(self.tile_size, -(-share // _LOWEST_TILE) * _LOWEST_TILE)

    def part_size(self) -> int:
        """Subproblems bounded at a time: as many as fit into the memory limit, or a tile's."""
        if self.in_tiles:
            return _tile(min(self.height, _TILE_BYTES // self._subproblem_bytes))
        limit = self.options.memory_bytes
        return 1 << 20 if limit is None else max(1, limit // self._subproblem_bytes)

    @property
    def _subproblem_bytes(self) -> int:
        """What bounding one subproblem takes."""
        per_row = 4 * _COPIES * row_elements(self.root.graph, self.root.graph.output)
        return per_row * int(self.clauses.index.shape[1])

    def _optimize_part(self, batch: DomainBatch, work: _Work) -> DomainBatch:
        # Nobody else holds them, so that what the optimiser is done with is freed.
        problems = [self.subproblems(batch, self.signs(batch))]
        if self.inner is not None:
            problems = [self.inner.tighten(problems.pop())]
            ranges = self.features.own_bounds(problems[0].bounds)
            batch = replace(batch, ranges=ranges.to(batch.ranges.device))
        thresholds = self.thresholds(batch)
        in_step, unfinished = self.partners.in_step, True

        def open_rows(lower: Tensor) -> Tensor:
            nonlocal unfinished
            proven = (lower.double() > thresholds).any(dim=0)
            if in_step and work.stop_early:
                unfinished = not bool(proven.all())
            return (~proven).expand_as(lower)

        def over(ahead_seconds: float) -> bool:
            """Whether to end: the clock's answer is that of all ranks already."""
            if self.options.out_of_time(ahead_seconds):
                return True
            return in_step and work.stop_early and self.partners.weights.agree_all(not unfinished)

        # In closed form nothing is asked of autograd, whose bookkeeping is a twentieth of a step of
        # 128 subproblems (measured, mnist-net_256x6, 2.5 against 2.35 ms).
        closed_form = relu_like(self.root.graph)
        with torch.inference_mode() if closed_form else nullcontext():
            best = optimize_subproblems(
                problems.pop(),
                work.options,
                open_rows,
                over,
                stop_early=work.stop_early and not in_step,
                in_place=work.in_place,
            )
        betas = collect(self.features, batch, best.betas)
        rounding = self._beta_rounding(batch, betas).to(best.lower.device)
        margin = self.margin(batch, best.lower.double() - rounding).cpu()
        margin = torch.maximum(margin, batch.margin)
        found = replace(batch, margin=margin, betas=betas)
        if work.in_place and self.features.views_alphas and batch.alphas.device == rounding.device:
            return found  # they have been written into
        alphas = self.features.join_alphas(best.alphas)
        return replace(found, alphas=alphas.transpose(0, 1).to(batch.alphas.device))

    def _beta_rounding(self, batch: DomainBatch, betas: Tensor) -> Tensor:
        """How far rounding of ``β z`` may have moved each bound, ``[S, B]`` float64.

        The root's slack is about numbers of the root; a large multiplier adds larger ones, which
        cancel in the bound.

        Args:
            betas: ``[B, S, D]`` of the splits.
        """
        largest = self._largest[batch.splits.long().abs()].double()
        # Summed in float64, so that room for more splits, all zeros, does not change the result.
        size = (betas.double() * largest.unsqueeze(1)).sum(dim=2)
        return allowance_of(size.to(betas.dtype)).T

    @cached_property
    def _largest(self) -> Tensor:
        """``[1 + T]`` on the CPU: largest absolute value of each feature at the root, after a 0."""
        largest = self.features.own_bounds(self.root.bounds)[0].abs().amax(dim=0).cpu()
        return torch.nn.functional.pad(largest, (1, 0))


def _tile(most: int) -> int:
    """Rows of a product whose bits do not depend on a row's place; 4 where `most` are fewer.

    A multiple of 16 where there are so many: with 2, 3, 5 to 7, 9, 11, 13 or 19 rows they do
    (measured with MKL, torch 2.14).
    """
    for step in (16, 8):
        if most >= step:
            return most - most % step
    return 4
