"""α-CROWN: the slopes of the relaxations optimised by gradient, all layers jointly.

Every row - of the specification and of each intermediate bound - has its own α for every relaxed
neuron below it. One iteration bounds all layers from the input upwards with the current α, and
moves α along the gradient of the sum of the open specification rows' lower bounds. Bounds of any α
in [0, 1] are sound, so the best seen is kept: per row for the specification, per element for
intermediate bounds.

Where ranks divide the rows among them (`BoundOptions.row_ranks`), a row's α, its coefficients and
Adam's moments live on its rank alone. Bounds are gathered as each node is done; their adjoint hands
every rank the gradient of its rows, summed over what all ranks made of them.

Reference: Xu et al. 2021 (arXiv 2011.13824), section 3. Differs: what one iteration proves of an
intermediate neuron is kept for all later iterations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from auto_LiRPA_patches.sharding.row_share import RowNeed, RowSplit

OpenRows = Callable[[Tensor], Tensor]
"""Tells for lower bounds ``[S, B]`` which rows are still worth improving, ``[S, B]`` bool."""


@dataclass(frozen=True)
class RowBlock:
    """This rank's rows of one start node with their α.

    Attributes:
        node: where the rows start.
        split: which of the node's S functionals are this rank's, S'.
        rows: those S' functionals.
        cut: how they are computed.
        alphas: per chunk and activation, ``[K, S_chunk, B, F]`` leaf tensors in [0, 1]. As many
            chunks on all ranks; the last ones may be empty.
        elements: ``[S / 2]`` elements of the node that all ranks' rows bound from both sides; None
            for the specification.
        recompute: whether the gradient pass computes each chunk's coefficients anew instead of
            keeping them.
    """

    node: int
    split: RowSplit
    rows: Rows
    cut: Chunking
    alphas: tuple[dict[int, Tensor], ...]
    elements: Tensor | None
    recompute: bool

    def bounds(self, state: Relaxations, out_of_time: Callable[[float], bool] = never) -> Tensor:
        """Lower bounds ``[S', B]``, differentiable in α and in the bounds behind `state`.

        Raises:
            OutOfTimeError: the clock ran out before one of the chunks.
        """
        parts = []
        for (start, stop), alphas, own in zip(
            self.ranges(), self.alphas, self._states(state), strict=True
        ):
            if out_of_time(0.0):
                raise OutOfTimeError(f"out of time at {state.graph.nodes[self.node].name}.")
            part = self._chunk(own, self.rows.narrow(start, stop), alphas)
            parts.append(part[: self.rows.count - start])
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """This rank's rows per chunk."""
        return self.cut.ranges(self.rows.count, self.cut.chunks(self.split.most))

    def joined(self, alphas: Sequence[Mapping[int, Tensor]]) -> dict[int, Tensor]:
        """All ranks' rows of what each keeps per chunk, as `alphas`: ``[K, S, B, F]``, replicated.

        No gradient.
        """
        found = {}
        for index in alphas[0]:
            own = torch.cat([chunk[index].detach() for chunk in alphas], dim=1)
            rows = own[:, : self.rows.count].transpose(0, 1)
            found[index] = self.split.gather(rows).transpose(0, 1).contiguous()
        return found

    def _states(self, state: Relaxations) -> list[Relaxations]:
        """What each chunk computes with; bounds that carry a gradient may be its own aliases."""
        moving = [
            node
            for node in state.graph.bounded
            if node < self.node and state.bounds[node].lower.requires_grad
        ]
        chunks = len(self.alphas)
        if not moving or self.split.tile_rows is None or not torch.is_grad_enabled():
            return [state] * chunks
        sides_of = [side for n in moving for side in (state.bounds[n].lower, state.bounds[n].upper)]
        return [
            state.over({n: Interval(*own[2 * k : 2 * k + 2]) for k, n in enumerate(moving)})
            for own in self.split.among_tiles(sides_of, chunks)
        ]

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
        self.spec_rows = rows
        self.blocks: dict[int, RowBlock] = {}
        with counted_as(MemoryKind.MULTIPLIERS):
            all_rows, split = _Start(self.graph.output, rows), bound_options.share.split(rows.count)
            self.spec = _row_block(start, all_rows, split, bound_options)
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
        own = self.spec.bounds(state, self.out_of_time)
        split = self.spec.split
        lower = split.gather(own.detach())
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
                own = block.bounds(state, self.out_of_time)
                refined = sides(block.split.gather(own))
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
            last = self.spec.split.gather(self.spec.bounds(state))
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
        starts = [_Start(self.graph.output, self.spec_rows)]
        for node in self.graph.bounded:
            if not self.graph.is_refined(node):
                continue
            elements = elements_to_bound(self.graph, node, self.reference[node], options)
            if elements.numel():
                rows = NeuronRows.both_sides(elements, self.box.lower.dtype)
                starts.append(_Start(node, rows, elements))
        needs = [RowNeed(s.rows.count, saved_elements(self.graph, s.node)) for s in starts]
        splits = options.share.split_all(needs)  # of the specification it is the one it has
        return {
            own.node: _row_block(start, own, split, options)
            for own, split in zip(starts[1:], splits[1:], strict=True)
        }


@dataclass(frozen=True)
class _Start:
    """All rows of one start node, and the elements of it they bound (see `RowBlock`)."""

    node: int
    rows: Rows
    elements: Tensor | None = None


def _row_block(
    start: Relaxations, rows: _Start, split: RowSplit, options: BoundOptions
) -> RowBlock:
    """This rank's rows of a start node, with α that give CROWN's lines."""
    graph, node, batch = start.graph, rows.node, start.box.lower.shape[0]
    size = start.box.lower.element_size()
    kept = size * batch * split.most * saved_elements(graph, node)
    block = RowBlock(
        node=node,
        split=split,
        rows=rows.rows.narrow(split.start, split.stop),
        cut=chunking(graph, node, batch, options),
        alphas=(),
        elements=rows.elements,
        recompute=options.memory_bytes is not None and kept > options.memory_bytes,
    )
    alphas = []
    for first, last in block.ranges():
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
    return replace(block, alphas=tuple(alphas))


def _relaxed_below(graph: Graph, node: int) -> list[int]:
    reached = {node}
    found = []
    for index in range(node, 0, -1):
        if index in reached:
            reached.update(graph.nodes[index].inputs)
            if index in graph.relaxed:
                found.append(index)
    return sorted(found)
