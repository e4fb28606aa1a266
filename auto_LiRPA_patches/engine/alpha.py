"""α-CROWN: the slopes of the relaxations optimised by gradient, all layers jointly.

Every row - of the specification and of each intermediate bound - has its own α for every relaxed
neuron below it. One iteration bounds all layers from the input upwards with the current α, and
moves α along the gradient of the sum of the open specification rows' lower bounds. Bounds of any α
in [0, 1] are sound, so the best seen is kept: per row for the specification, per element for
intermediate bounds.

Reference: Xu et al. 2021 (arXiv 2011.13824), section 3. Differs: what one iteration proves of an
intermediate neuron is kept for all later iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam
from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.chunks import chunking, saved_elements
from auto_LiRPA_patches.engine.errors import OutOfTimeError
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions, never
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import Chunking, NeuronRows, Rows
from auto_LiRPA_patches.engine.schedule import elements_to_bound, put, sides
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as

OpenRows = Callable[[Tensor], Tensor]
"""Tells for lower bounds ``[S, B]`` which rows are still worth improving, ``[S, B]`` bool."""


@dataclass(frozen=True)
class RowBlock:
    """The rows of one start node with their α.

    Attributes:
        node: where the rows start.
        rows: S functionals of the node.
        cut: how they are computed.
        alphas: per chunk and activation, ``[K, S_chunk, B, F]`` leaf tensors in [0, 1].
        elements: ``[S / 2]`` elements of the node the rows bound from both sides; None for the
            specification.
        recompute: whether the gradient pass computes each chunk's coefficients anew instead of
            keeping them.
    """

    node: int
    rows: Rows
    cut: Chunking
    alphas: tuple[dict[int, Tensor], ...]
    elements: Tensor | None
    recompute: bool

    def bounds(self, state: Relaxations, out_of_time: Callable[[float], bool] = never) -> Tensor:
        """Lower bounds ``[S, B]``, differentiable in α and in the bounds behind `state`.

        Raises:
            OutOfTimeError: the clock ran out before one of the chunks.
        """
        parts = []
        ranges = self.cut.ranges(self.rows.count)
        for (start, stop), alphas in zip(ranges, self.alphas, strict=True):
            if out_of_time(0.0):
                raise OutOfTimeError(f"out of time at {state.graph.nodes[self.node].name}.")
            part = self._chunk(state, self.rows.narrow(start, stop), alphas)
            parts.append(part[: self.rows.count - start])
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _chunk(self, state: Relaxations, rows: Rows, alphas: dict[int, Tensor]) -> Tensor:
        def run(*tensors: Tensor) -> Tensor:
            own = dict(zip(alphas, tensors, strict=True))
            return lower_bounds(
                state.graph, state.box, self.node, rows, lambda index: state.lines(index, own)
            )

        if not self.recompute or not torch.is_grad_enabled():
            return run(*alphas.values())
        for index in _relaxed_below(state.graph, self.node):
            state.relaxation(index)  # made outside: recomputing must find what this pass found
        result: Tensor = checkpoint(
            run, *alphas.values(), use_reentrant=False, preserve_rng_state=False
        )
        return result


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
        if optimization.finished or timed_out:
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
        optimization.step()
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
        self.out_of_time = bound_options.out_of_time
        self.keep_inner = options.keep_inner
        self.bound_options, self.options = bound_options, options
        self.features = dict(start.features)
        self.reference = {node: start.bounds[node].detach() for node in self.graph.bounded}
        self.blocks: dict[int, RowBlock] = {}
        with counted_as(MemoryKind.MULTIPLIERS):
            self.spec = _row_block(start, self.graph.output, rows, None, bound_options)
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

    def begin_joint(self, start: Relaxations) -> None:
        """From here on optimise intermediate bounds too, beginning at the best α met."""
        with counted_as(MemoryKind.MULTIPLIERS):
            self.blocks = self._blocks(start, self.bound_options)
        self._restore()
        self.adam = self._adam()

    def evaluate(self, open_rows: OpenRows) -> float:
        """Bound with the current α; keep the best; return what open rows gained by it, summed."""
        state = self._state()
        lower = self.spec.bounds(state, self.out_of_time)
        better = lower.detach() > self.best
        gained = (lower.detach() - self.best) * better
        self._keep(lower.detach(), better)
        wanted = open_rows(self.best)
        self.finished = not bool(wanted.any())
        open_lower = torch.where(wanted, lower, torch.zeros_like(lower))
        self.loss = -open_lower.sum() if lower.requires_grad else None
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
                refined = sides(block.bounds(state, self.out_of_time))
                bounds = put(self.graph, node, bounds, block.elements, refined).intersect(bounds)
                name = self.graph.nodes[node].name
                bounds = self.graph.neurons.require_sound(node, name, bounds)
                self.reference[node] = bounds.detach()
            state.set_bounds(node, bounds)
        self.fixed = None if self.blocks else state
        return state

    def step(self) -> None:
        """One Adam step on α, projected to [0, 1] afterwards."""
        if self.loss is not None:
            self.adam.descend(self.loss)
            self.loss = None

    def result(self, taken: int, timed_out: bool) -> AlphaResult:
        """The best bounds, improved once more by the best α over the best intermediate bounds."""
        self.loss = None
        self._restore()
        with torch.no_grad():
            state = Relaxations(self.graph, self.box, self.features)
            for node in self.graph.bounded:
                state.set_bounds(node, self.reference[node])
            last = self.spec.bounds(state)
            self.best = torch.where(last > self.best, last, self.best)
        alphas = {
            index: torch.cat([chunk[index] for chunk in self.best_alphas], dim=1)[
                :, : self.best.shape[0]
            ]
            for index in self.best_alphas[0]
        }
        return AlphaResult(
            self.best, dict(self.reference), alphas, taken, timed_out, self._inner_alphas()
        )

    def _inner_alphas(self) -> dict[int, tuple[Tensor, dict[int, Tensor]]]:
        found = {}
        for node, block in self.blocks.items() if self.keep_inner else ():
            if block.elements is not None and block.alphas:
                joined = {
                    index: torch.cat([chunk[index].detach() for chunk in block.alphas], dim=1)
                    for index in block.alphas[0]
                }
                count = block.rows.count
                found[node] = block.elements, {i: a[:, :count] for i, a in joined.items()}
        return found

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
        ranges = self.spec.cut.ranges(self.spec.rows.count)
        for (start, stop), own, kept in zip(
            ranges, self.spec.alphas, self.best_alphas, strict=True
        ):
            chosen = better[start:stop]
            if not bool(chosen.any()):
                continue
            count = chosen.shape[0]
            for index, alpha in own.items():
                target = kept[index][:, :count]
                current = alpha.detach()[:, :count]
                target.copy_(torch.where(chosen[None, :, :, None], current, target))

    def _blocks(self, start: Relaxations, options: BoundOptions) -> dict[int, RowBlock]:
        blocks: dict[int, RowBlock] = {}
        if options.intermediate != "crown":
            return blocks
        for node in self.graph.bounded:
            if not self.graph.is_refined(node):
                continue
            elements = elements_to_bound(self.graph, node, self.reference[node], options)
            if elements.numel():
                rows = NeuronRows.both_sides(elements, self.box.lower.dtype)
                blocks[node] = _row_block(start, node, rows, elements, options)
        return blocks


def _row_block(
    start: Relaxations, node: int, rows: Rows, elements: Tensor | None, options: BoundOptions
) -> RowBlock:
    graph, batch = start.graph, start.box.lower.shape[0]
    cut = chunking(graph, node, batch, options)
    alphas = []
    for first, last in cut.ranges(rows.count):
        chunk: dict[int, Tensor] = {}
        for index in _relaxed_below(graph, node):
            found = start.activation(index)
            if found is None:
                continue
            operator, relaxation = found
            initial = operator.initial_alpha(relaxation).detach()
            # Where ranks share the neurons, also no α at all: their gradient passes stay in step.
            if initial.numel() or index in graph.neurons.split:
                expanded = initial.unsqueeze(1).expand(-1, last - first, -1, -1)
                chunk[index] = expanded.contiguous()
        alphas.append(chunk)
    size = start.box.lower.element_size()
    kept = size * batch * rows.count * saved_elements(graph, node)
    recompute = options.memory_bytes is not None and kept > options.memory_bytes
    return RowBlock(node, rows, cut, tuple(alphas), elements, recompute)


def _relaxed_below(graph: Graph, node: int) -> list[int]:
    reached = {node}
    found = []
    for index in range(node, 0, -1):
        if index in reached:
            reached.update(graph.nodes[index].inputs)
            if index in graph.relaxed:
                found.append(index)
    return sorted(found)
