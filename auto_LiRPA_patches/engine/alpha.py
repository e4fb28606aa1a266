"""α-CROWN: the slopes of the relaxations optimised by gradient, all layers jointly.

Every row - of the specification and of each intermediate bound - has its own α for every relaxed
neuron below it. One iteration bounds all layers from the input upwards with the current α, and
moves α along the gradient of the sum of the open specification rows' lower bounds. Bounds of any α
in [0, 1] are sound, so the best seen is kept: per row for the specification, per element for
intermediate bounds.

Where ranks divide the rows among them (`BoundOptions.row_share`), a row's α, its coefficients and
Adam's moments live on its rank alone. Bounds are gathered as each node is done; their adjoint hands
every rank the gradient of its rows, summed over what all ranks made of them.

Reference: Xu et al. 2021 (arXiv 2011.13824), section 3. Differs: what one iteration proves of an
intermediate neuron is kept for all later iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam
from auto_LiRPA_patches.engine.chunks import saved_elements
from auto_LiRPA_patches.engine.errors import OutOfTimeError
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions, never
from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.row_block import RowBlock, Start, row_block, slope_bytes
from auto_LiRPA_patches.engine.rows import NeuronRows, Rows
from auto_LiRPA_patches.engine.schedule import elements_to_bound, put, sides
from auto_LiRPA_patches.errors import MemoryRanOutError
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as
from auto_LiRPA_patches.sharding.row_share import RowNeed

OpenRows = Callable[[Tensor], Tensor]
"""Tells for lower bounds ``[S, B]`` which rows are still worth improving, ``[S, B]`` bool."""


@dataclass(frozen=True)
class AlphaResult:
    """What the optimisation leaves behind.

    Attributes:
        lower: ``[S, B]`` the best lower bound of each specification row.
        bounds: the best bounds of each node in ``graph.bounded``, ``[B, *shape]``.
        alphas: the α of each specification row at its best bound, per activation
            ``[K, S, B, F]``.
        iterations: gradient steps taken.
        timed_out: the clock ended the optimisation.
        inner: per node with optimised bounds its elements ``[F]`` and the last α of their rows,
            per activation ``[K, 2F, B, F']``; empty without `AlphaOptions.keep_inner`.
    """

    lower: Tensor
    bounds: dict[int, Interval]
    alphas: dict[int, Tensor]
    iterations: int
    timed_out: bool = False
    inner: Mapping[int, tuple[Tensor, dict[int, Tensor]]] = field(default_factory=dict)


def optimize_alpha(
    start: Relaxations,
    rows: Rows,
    open_rows: OpenRows,
    bound_options: BoundOptions,
    options: AlphaOptions,
) -> AlphaResult:
    """Optimise α from CROWN's relaxations.

    Args:
        start: relaxations of every node, as `crown_relaxations` leaves them.
        rows: S specification rows at the output.
        open_rows: which rows matter, given their bounds.

    Returns:
        Bounds at least as tight as CROWN's, row by row and element by element.
    """
    optimization = _Optimization(start, rows, bound_options, options)
    taken, timed_out = 0, False
    if options.final_first:
        first = replace(options, iterations=options.final_first)
        taken, timed_out = _descend(optimization, open_rows, bound_options, first)
        if optimization.finished or timed_out or optimization.lost:
            return optimization.result(taken, timed_out)
    optimization.begin_joint(start)
    more, timed_out = _descend(optimization, open_rows, bound_options, options)
    return optimization.result(taken + more, timed_out)


# Over so many steps the gain is compared with the whole gain (`AlphaOptions.saturation`).
_RECENT = 5


def _descend(
    optimization: _Optimization,
    open_rows: OpenRows,
    bound_options: BoundOptions,
    options: AlphaOptions,
) -> tuple[int, bool]:
    """Step until an end is met; return the steps taken and whether the clock ended them."""
    taken, stale = 0, 0
    gains: list[float] = []
    longest, since = 0.0, time.monotonic()
    for iteration in range(options.iterations + 1):
        try:
            gain = optimization.evaluate(open_rows)
        except OutOfTimeError:
            return taken, True
        except MemoryRanOutError:
            return taken, False
        stale = 0 if gain > 0 or optimization.finished else stale + 1
        if options.early_stop and (optimization.finished or stale > options.patience):
            break
        if iteration:
            gains.append(gain)
        if iteration == options.iterations or _saturated(gains, options.saturation):
            break
        # A step cannot be broken off, so none is begun that would end too late.
        longest, since = max(longest, time.monotonic() - since), time.monotonic()
        if bound_options.out_of_time(longest):
            return taken, True
        try:
            optimization.step(open_rows)
        except OutOfTimeError:
            return taken, True
        except MemoryRanOutError:
            return taken, False
        taken += 1
        if bound_options.progress is not None and optimization.best.numel():
            worst = float(optimization.best.min())
            bound_options.progress(f"α-CROWN iteration {taken}: worst lower bound {worst:.6g}")
    return taken, False


def _saturated(gains: list[float], share: float) -> bool:
    """Whether the last steps gained less than `share` of what all of them gained."""
    return len(gains) >= 2 * _RECENT and sum(gains[-_RECENT:]) < share * sum(gains)


class _Optimization:
    """State of one run: α, the optimiser, and the best bounds so far."""

    def __init__(
        self, start: Relaxations, rows: Rows, bound_options: BoundOptions, options: AlphaOptions
    ) -> None:
        self.graph: Graph = start.graph
        self.box = start.box
        self.keep_inner = options.keep_inner
        self.bound_options, self.options = bound_options, options
        self.features = dict(start.features)
        self.reference = {node: start.bounds[node].detach() for node in self.graph.bounded}
        self.spec_rows = rows
        self.blocks: dict[int, RowBlock] = {}
        with counted_as(MemoryKind.MULTIPLIERS):
            all_rows, split = Start(self.graph.output, rows), bound_options.share.split(rows.count)
            self.spec = row_block(start, all_rows, split, bound_options)
        self.adam = self._adam()
        self.fixed: Relaxations | None = None
        shape = (rows.count, self.box.lower.shape[0])
        self.best = torch.full(
            shape, -torch.inf, dtype=self.box.lower.dtype, device=self.box.lower.device
        )
        with counted_as(MemoryKind.MULTIPLIERS):
            self.best_alphas = [
                {index: alpha.detach().clone() for index, alpha in chunk.items()}
                for chunk in self.spec.alphas
            ]
        self.loss: Tensor | None = None
        self.finished = False
        self.lost = False

    def begin_joint(self, start: Relaxations) -> None:
        """From here on optimise intermediate bounds too, beginning at the best α met."""
        with counted_as(MemoryKind.MULTIPLIERS):
            self.blocks = self._blocks(start, self.bound_options)
        self._restore()
        self.adam = self._adam()

    def evaluate(self, open_rows: OpenRows) -> float:
        """Bound with the current α; keep the best; return what open rows gained by it, summed.

        Raises:
            OutOfTimeError: the clock ran out.
            MemoryRanOutError: memory does not hold it, even with less at a time.
        """
        while True:
            try:
                return self._evaluate(open_rows)
            except MemoryRanOutError:
                self.loss = None
            self._spare()

    def _evaluate(self, open_rows: OpenRows) -> float:
        state = self._state()
        what, split = "the functionals", self.spec.split
        own = self.spec.bounds(state, what, self.bound_options)
        lower = split.gather(own.detach(), what)
        better = lower > self.best
        gained = (lower - self.best) * better
        self._keep(lower, better)
        wanted = open_rows(self.best)
        self.finished = not bool(wanted.any())
        # What is minimised is the sum over all ranks of their losses.
        open_lower = torch.where(wanted[split.start : split.stop], own, torch.zeros_like(own))
        self.loss = -open_lower.sum() if own.requires_grad else None
        return float(gained[wanted].nan_to_num(nan=0.0).sum())

    def _state(self) -> Relaxations:
        """Relaxations over the intermediate bounds that the current α give."""
        if not self.blocks and self.fixed is not None:
            return self.fixed
        state = Relaxations(self.graph, self.box, self.features)
        for node in self.graph.bounded:
            bounds = self.reference[node]
            block = self.blocks.get(node)
            if block is not None and block.elements is not None:
                what = self.graph.nodes[node].name
                own = block.bounds(state, what, self.bound_options)
                refined = sides(block.split.gather(own, what))
                bounds = put(self.graph, node, bounds, block.elements, refined).intersect(bounds)
                name = self.graph.nodes[node].name
                bounds = self.graph.neurons.require_sound(node, name, bounds)
                self.reference[node] = bounds.detach()
            state.set_bounds(node, bounds)
        self.fixed = None if self.blocks else state
        return state

    def step(self, open_rows: OpenRows) -> None:
        """One Adam step on α, projected to [0, 1] afterwards.

        Raises:
            OutOfTimeError, MemoryRanOutError: as `evaluate`; α has not moved.
        """
        while self.loss is not None:
            loss, self.loss = self.loss, None
            gradients = self._gradients(loss)
            del loss
            if gradients is not None:
                self.adam.move(gradients)
                for block in (*self.blocks.values(), self.spec):
                    for chunk in block.alphas:
                        self.graph.neurons.agree_on(chunk)
                return
            self._spare()
            self.evaluate(open_rows)

    def _gradients(self, loss: Tensor) -> tuple[Tensor | None, ...] | None:
        """Gradients of every α; None on all ranks where one of them ran out of memory.

        On the way each exchange begins with a vote whether all go on, and there is one at the end.
        A rank that ran out of memory casts its vote at once: it is the others' next.
        """
        ranks = self.bound_options.row_share
        gradients = None
        try:
            gradients = self.adam.gradients(loss)
        except MemoryRanOutError:
            return None
        except Exception as error:
            if not self.bound_options.alone or not ran_out_of_memory(error):
                raise
        return None if ranks.agree_any(gradients is None) else gradients

    def _spare(self) -> None:
        """Need less memory from here on: coefficients twice, then half as many rows at a time.

        Raises:
            MemoryRanOutError: on all ranks, where none of them can do with less.
        """
        options = self.bound_options
        blocks = (*self.blocks.values(), self.spec)
        if not all(block.recompute for block in blocks):
            options.told("memory ran out in α-CROWN: coefficients are computed twice from now on")
            self.blocks = {n: replace(own, recompute=True) for n, own in self.blocks.items()}
            self.spec = replace(self.spec, recompute=True)
            return
        smaller = [own.halving.shrink(min(own.cut.rows, own.rows.count)) for own in blocks]
        if not options.row_share.agree_any(any(smaller)):
            self.lost = True
            options.told("memory ran out in α-CROWN: it ended early, with the bounds it had")
            raise MemoryRanOutError("α-CROWN does not fit into memory, even row by row.")

    def result(self, taken: int, timed_out: bool) -> AlphaResult:
        """The best bounds, improved once more by the best α over the best intermediate bounds."""
        self.loss = None
        self._restore()
        with torch.no_grad():
            state = Relaxations(self.graph, self.box, self.features)
            for node in self.graph.bounded:
                state.set_bounds(node, self.reference[node])
            what = "the functionals at the end"
            untimed = replace(self.bound_options, out_of_time=never)
            with suppress(MemoryRanOutError):
                last = self.spec.split.gather(self.spec.bounds(state, what, untimed), what)
                self.best = torch.where(last > self.best, last, self.best)
        inner = {
            node: (block.elements, block.joined(block.alphas))
            for node, block in (self.blocks.items() if self.keep_inner else ())
            if block.elements is not None
        }
        alphas = self.spec.joined(self.best_alphas)
        return AlphaResult(self.best, dict(self.reference), alphas, taken, timed_out, inner)

    def _adam(self) -> ProjectedAdam:
        """An optimiser of every α there is."""
        leaves = [
            alpha.requires_grad_(True)
            for block in (*self.blocks.values(), self.spec)
            for chunk in block.alphas
            for alpha in chunk.values()
        ]
        group = ParameterGroup(leaves, self.options.learning_rate, 0.0, 1.0)
        return ProjectedAdam([group], self.options.decay)

    def _restore(self) -> None:
        """Give the specification's rows their best α."""
        with torch.no_grad():
            for own, kept in zip(self.spec.alphas, self.best_alphas, strict=True):
                for index, alpha in own.items():
                    alpha.copy_(kept[index])

    def _keep(self, lower: Tensor, better: Tensor) -> None:
        self.best = torch.where(better, lower, self.best)
        mine = better[self.spec.split.start : self.spec.split.stop]
        for (start, stop), own, kept in zip(
            self.spec.ranges(), self.spec.alphas, self.best_alphas, strict=True
        ):
            chosen = mine[start:stop]
            if not bool(chosen.any()):
                continue
            count = chosen.shape[0]
            for index, alpha in own.items():
                target = kept[index][:, :count]
                current = alpha.detach()[:, :count]
                target.copy_(torch.where(chosen[None, :, :, None], current, target))

    def _blocks(self, start: Relaxations, options: BoundOptions) -> dict[int, RowBlock]:
        if options.intermediate != "crown":
            return {}
        starts = [Start(self.graph.output, self.spec_rows)]
        for node in self.graph.bounded:
            if not self.graph.is_refined(node):
                continue
            elements = elements_to_bound(self.graph, node, self.reference[node], options)
            if elements.numel():
                rows = NeuronRows.both_sides(elements, self.box.lower.dtype)
                starts.append(Start(node, rows, elements))
        needs = [RowNeed(s.rows.count, saved_elements(self.graph, s.node)) for s in starts]
        splits = options.share.split_all(needs)  # of the specification it is the one it has
        inner = list(zip(starts[1:], splits[1:], strict=True))
        if options.alpha_bytes is not None:
            needed = sum(slope_bytes(start, own.node, split.most) for own, split in inner)
            if needed > options.alpha_bytes:
                options.told(
                    f"α of inner layers would take {needed >> 20} MiB, {options.alpha_bytes >> 20} "
                    "are at hand: it is optimised for the property alone"
                )
                return {}
        return {own.node: row_block(start, own, split, options) for own, split in inner}
