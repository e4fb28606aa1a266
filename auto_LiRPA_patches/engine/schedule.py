"""CROWN: intermediate bounds from the input upwards, then the rows asked for.

Each node that some relaxation needs is first bounded by its interval image; the elements which
that leaves unstable are bounded by backward passes in row chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.backward import concretize, lower_bounds, overflow_to_nan
from auto_LiRPA_patches.engine.chunks import chunking
from auto_LiRPA_patches.engine.errors import OutOfTimeError
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.out_of_memory import Halving, ran_out_of_memory
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import Chunking, NeuronRows, Rows
from auto_LiRPA_patches.engine.window_steps import WindowRows, window_plan
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.base import AffineOperator, num_elements
from auto_LiRPA_patches.operators.interval import Interval

# Picking columns of A out and putting them back costs as much as twenty passes over them, so lines
# over all elements are faster unless few are unstable (measured, 1024 rows of 256 columns).
_SPARSE_BELOW = 0.25


def crown_relaxations(
    graph: Graph,
    box: Interval,
    options: BoundOptions,
    known: Mapping[int, Interval] | None = None,
) -> Relaxations:
    """Bounds of every node that needs them, by CROWN or (`options.intermediate`) IBP.

    Args:
        graph: the network.
        box: ``[B, *input_shape]``.
        options: chunks, sparsity, clock.
        known: sound bounds of some nodes; they are kept where they are tighter.

    Returns:
        Relaxations with bounds of all nodes in ``graph.bounded``.

    Raises:
        OutOfTimeError: the clock ran out.
        SoundnessError: a bound is not finite enough to go on, or bounds cross.
    """
    features: dict[int, Tensor | None] = {}
    state = Relaxations(graph, box, features)
    with torch.no_grad():
        for node in graph.bounded:
            bounds = state.interval(node)
            refine = options.intermediate == "crown" and graph.is_refined(node)
            if refine:
                elements = elements_to_bound(graph, node, bounds, options)
                if elements.numel():
                    refined = crown_interval(state, node, elements, options)
                    tighter = put(graph, node, bounds, elements, refined).intersect(bounds)
                    bounds = _where_unstable(graph, node, bounds, tighter, options)
            if known is not None and node in known:
                bounds = bounds.intersect(known[node])
            name = graph.nodes[node].name
            state.set_bounds(node, graph.neurons.require_sound(node, name, bounds))
            for index in graph.relaxed:
                if graph.nodes[index].inputs[0] == node:
                    features[index] = relaxed_features(graph, index, bounds, options)
            if options.progress is not None:
                options.progress(f"bounded {graph.nodes[node].name}")
    return state


def crown_bounds(state: Relaxations, rows: Rows, options: BoundOptions) -> Tensor:
    """CROWN lower bounds ``[S, B]`` of `rows` at the network's output. No gradient."""
    output = state.graph.output
    with torch.no_grad():
        cut = chunking(state.graph, output, state.box.lower.shape[0], options)
        return bound_rows(state, output, rows, cut, options)


def bound_rows(
    state: Relaxations,
    node: int,
    rows: Rows,
    cut: Chunking,
    options: BoundOptions,
) -> Tensor:
    """Lower bounds ``[S, B]`` of `rows` at `node` with CROWN's own lines, chunk by chunk.

    Each of `options.row_share` computes its share; the result is replicated. No gradient.

    Raises:
        OutOfTimeError: the clock ran out between two chunks.
    """

    def bound(chunk: Rows) -> Tensor:
        return lower_bounds(state.graph, state.box, node, chunk, lambda i: state.lines(i, None))

    return by_chunks(state.graph.nodes[node].name, rows, bound, cut, options)


def by_chunks(
    place: str,
    rows: Rows,
    compute: Callable[[Rows], Tensor],
    cut: Chunking,
    options: BoundOptions,
) -> Tensor:
    """``compute(rows) [S, *rest]`` of all rows, each rank's share chunk by chunk; no gradient.

    Args:
        place: where the rows start, for messages.
        compute: gives one result per row of a chunk; may gather weights, and nothing else.

    Raises:
        OutOfTimeError: the clock ran out between two chunks.
        MemoryRanOutError: a single row, or a tile, does not fit into some rank's memory.
    """
    split = options.share.split(rows.count)
    own = rows.narrow(split.start, split.stop)
    halving = Halving(place, options)

    def bound(start: int, stop: int) -> Tensor:
        def piece(first: int, last: int) -> Tensor:
            return compute(own.narrow(start + first, start + last))

        with torch.no_grad():
            return halving.run(piece, stop - start)[: own.count - start]

    ranges = cut.ranges(own.count, cut.chunks(split.most))
    found = in_turn(f"{place}, rows from {split.start}", ranges, bound, options)
    return split.give_up(place) if found is None else split.gather(found, place)


def in_turn(
    place: str,
    ranges: Iterable[tuple[int, int]],
    bound: Callable[[int, int], Tensor],
    options: BoundOptions,
) -> Tensor | None:
    """``bound(start, stop)`` of one chunk after the other, put together.

    Returns:
        None where memory ran out and other ranks wait to hear of it: the clock, which is asked
        before each chunk, was asked as often as they ask it.

    Raises:
        OutOfTimeError: the clock ran out.
    """
    parts: list[Tensor] | None = []
    for start, stop in ranges:
        if options.out_of_time(0.0):
            raise OutOfTimeError(f"out of time at {place}.")
        if parts is None:
            continue
        try:
            parts.append(bound(start, stop))
        except Exception as error:
            if not options.alone or not ran_out_of_memory(error):
                raise
            parts = None
    if parts is None:
        return None
    return torch.cat(parts) if len(parts) != 1 else parts[0]


def interval_rows(state: Relaxations, rows: Rows) -> Tensor:
    """Interval lower bounds ``[S, B]`` of `rows` at the network's output. No gradient.

    The rows are merged into a last affine operator first, which is never looser than bounding
    the outputs one by one.
    """
    graph, box = state.graph, state.box
    node, operator = graph.output, graph.nodes[graph.output].operator
    coeffs = rows.coefficients(graph, node, box.lower.shape[0])
    bias: Tensor | None = None
    with torch.no_grad():
        if isinstance(operator, AffineOperator):
            (coeffs,), bias = operator.backward(graph.weights, coeffs, None)
            node = graph.nodes[node].inputs[0]
        name = graph.nodes[node].name
        bounds = graph.neurons.require_sound(node, name, state.interval(node))
        lower = concretize(coeffs.flatten(2), bounds)
        if node in graph.neurons.split:
            lower = graph.neurons.total(lower)
        return graph.neurons.agreed(overflow_to_nan(lower if bias is None else lower + bias))


def crown_interval(
    state: Relaxations, node: int, elements: Tensor, options: BoundOptions
) -> Interval:
    """CROWN bounds ``[B, F]`` of ``elements [F]`` of `node`."""
    rows = NeuronRows.both_sides(elements, state.box.lower.dtype)
    cut = chunking(state.graph, node, state.box.lower.shape[0], options)
    plan = None if options.tile_rows is not None else window_plan(state.graph, node)
    if plan is None:
        return sides(bound_rows(state, node, rows, cut, options))
    # In the order of the cells: rows that start in one cell look at the same window.
    cells = num_elements(state.graph.nodes[node].shape[1:])
    order = torch.argsort(rows.index % cells, stable=True)
    ordered = WindowRows(rows.index[order], rows.sign[order])
    cut = plan.chunking(state.box.lower.shape[0], options)
    found = bound_rows(state, node, ordered, cut, options)
    return sides(torch.empty_like(found).index_copy_(0, order, found))


def sides(result: Tensor) -> Interval:
    """``[2F, B]`` lower bounds of +e and -e rows -> the interval ``[B, F]``."""
    count = result.shape[0] // 2
    return Interval(result[:count].T, -result[count:].T)


def scatter(base: Interval, elements: Tensor, refined: Interval) -> Interval:
    """`base` ``[B, *shape]`` with ``refined [B, F]`` in the places of ``elements [F]``."""
    shape = base.lower.shape
    lower = base.lower.flatten(1).index_copy(1, elements, refined.lower)
    upper = base.upper.flatten(1).index_copy(1, elements, refined.upper)
    return Interval(lower.view(shape), upper.view(shape))


def put(graph: Graph, node: int, base: Interval, elements: Tensor, refined: Interval) -> Interval:
    """`scatter` of bounds of all ranks' elements of `node` into this rank's `base`."""
    return scatter(base, *graph.neurons.own(node, elements, refined))


def elements_to_bound(graph: Graph, node: int, bounds: Interval, options: BoundOptions) -> Tensor:
    """Elements of `node` that a tighter bound could help, ascending ``[F]``.

    Where ranks share the node's neurons, those of all ranks, and counted over all.
    """
    count = num_elements(graph.nodes[node].shape)
    if not options.sparse_rows:
        return torch.arange(graph.neurons.count(node, count), device=bounds.lower.device)
    wanted = _unstable(graph, node, bounds)
    if node in options.reached:
        wanted &= options.reached[node]
    return graph.neurons.among_all(node, wanted)


def _unstable(graph: Graph, node: int, bounds: Interval) -> Tensor:
    """``[N]`` bool: elements of this rank whose relaxation above is not exact."""
    count = num_elements(graph.nodes[node].shape)
    wanted = torch.zeros(count, dtype=torch.bool, device=bounds.lower.device)
    for index in graph.relaxed:
        if node not in graph.nodes[index].inputs:
            continue
        operator = graph.nodes[index].operator
        if isinstance(operator, Activation):
            wanted |= operator.unstable(bounds.flatten())
        else:
            wanted[:] = True
    return wanted


def _where_unstable(
    graph: Graph, node: int, bounds: Interval, tighter: Interval, options: BoundOptions
) -> Interval:
    """`tighter` where it can matter; `bounds` where every relaxation is exact already.

    Without `sparse_rows` all elements were bounded. Keeping all of that would tighten the interval
    images above, so that the option changed bounds and not only the work.
    """
    if options.sparse_rows:
        return tighter
    wanted = _unstable(graph, node, bounds).nonzero().squeeze(1)
    refined = Interval(tighter.lower.flatten(1)[:, wanted], tighter.upper.flatten(1)[:, wanted])
    return scatter(bounds, wanted, refined)


def relaxed_features(
    graph: Graph, index: int, bounds: Interval, options: BoundOptions
) -> Tensor | None:
    """The elements activation `index` relaxes; None = all."""
    operator = graph.nodes[index].operator
    if not isinstance(operator, Activation) or not options.sparse_alpha:
        return None
    unstable = operator.unstable(bounds.flatten())
    few = int(unstable.sum()) < _SPARSE_BELOW * unstable.numel()
    return unstable.nonzero().squeeze(1) if few else None
