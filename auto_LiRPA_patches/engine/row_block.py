"""The rows of one start node that are this rank's in α-CROWN, with their α."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.chunks import chunking, saved_elements
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.out_of_memory import Halving
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import Chunking, Rows
from auto_LiRPA_patches.engine.schedule import in_turn
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.row_share import RowSplit


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
        halving: the rows of a chunk that are computed together.
    """

    node: int
    split: RowSplit
    rows: Rows
    cut: Chunking
    alphas: tuple[dict[int, Tensor], ...]
    elements: Tensor | None
    recompute: bool
    halving: Halving

    def bounds(self, state: Relaxations, what: str, options: BoundOptions) -> Tensor:
        """Lower bounds ``[S', B]``, differentiable in α and in the bounds behind `state`.

        Args:
            what: the rows' name, under which all ranks' are gathered afterwards.
            options: the clock.

        Raises:
            OutOfTimeError: the clock ran out before one of the chunks.
            MemoryRanOutError: some rank's memory does not hold its rows.
        """
        chunks = zip(self.alphas, self._states(state), strict=True)

        def bound(start: int, stop: int) -> Tensor:
            alphas, own = next(chunks)

            def piece(first: int, last: int) -> Tensor:
                part = alphas
                if last - first < stop - start:
                    part = {index: alpha[:, first:last] for index, alpha in alphas.items()}
                return self._chunk(own, self.rows.narrow(start + first, start + last), part)

            return self.halving.run(piece, stop - start)[: self.rows.count - start]

        found = in_turn(what, self.ranges(), bound, options)
        return self.split.give_up(what) if found is None else found

    def ranges(self) -> Iterator[tuple[int, int]]:
        """This rank's rows per chunk."""
        return self.cut.ranges(self.rows.count, self.cut.chunks(self.split.most))

    def joined(self, alphas: Sequence[Mapping[int, Tensor]]) -> dict[int, Tensor]:
        """All ranks' rows of what each keeps per chunk, as `alphas`: ``[K, S, B, F]``, replicated.

        No gradient. Branch and bound begins with the slopes of the specification's rows, in every
        activation, on all ranks; those of inner rows stay where they are unless it bounds inner
        neurons anew (`AlphaOptions.keep_inner`).
        """
        found = {}
        for index in alphas[0]:
            own = torch.cat([chunk[index].detach() for chunk in alphas], dim=1)
            rows = own[:, : self.rows.count].transpose(0, 1)
            whole = self.split.gather(rows, f"slopes {index} of node {self.node}")
            found[index] = whole.transpose(0, 1).contiguous()
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


# α itself, its gradient, Adam's two moments, the best met.
_COPIES = 5


@dataclass(frozen=True)
class Start:
    """All rows of one start node, and the elements of it they bound (see `RowBlock`)."""

    node: int
    rows: Rows
    elements: Tensor | None = None


def row_block(start: Relaxations, rows: Start, split: RowSplit, options: BoundOptions) -> RowBlock:
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
        halving=Halving(graph.nodes[node].name, options),
    )
    initial = _initial_alphas(start, node)
    alphas = tuple(
        {  # each chunk its own: of one row, `contiguous` would hand all chunks the same tensor
            index: alpha.expand(-1, last - first, -1, -1).clone(
                memory_format=torch.contiguous_format
            )
            for index, alpha in initial.items()
        }
        for first, last in block.ranges()
    )
    return replace(block, alphas=alphas)


def slope_bytes(start: Relaxations, node: int, rows: int) -> int:
    """What α of so many rows of a start node takes, with gradient, moments and the best met."""
    per_row = sum(alpha.numel() for alpha in _initial_alphas(start, node).values())
    return _COPIES * start.box.lower.element_size() * rows * per_row


def _initial_alphas(start: Relaxations, node: int) -> dict[int, Tensor]:
    """The α of one row of a start node that give CROWN's lines, ``[K, 1, B, F]`` each."""
    every = start.initial_alphas(1, below=node + 1)  # a start node may be relaxed itself
    split = start.graph.neurons.split
    # Where ranks share the neurons, also no α at all: their gradient passes stay in step.
    return {
        index: every[index]
        for index in _relaxed_below(start.graph, node)
        if index in every and (every[index].numel() or index in split)
    }


def _relaxed_below(graph: Graph, node: int) -> list[int]:
    reached = {node}
    found = []
    for index in range(node, 0, -1):
        if index in reached:
            reached.update(graph.nodes[index].inputs)
            if index in graph.relaxed:
                found.append(index)
    return sorted(found)
