"""How many rows of a backward pass fit into memory."""

from __future__ import annotations

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.rows import Chunking
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.relaxed import Relaxed

# One step holds the old and the new coefficients and up to two temporaries of their size.
_COPIES = 4


def row_elements(graph: Graph, node: int) -> int:
    """Estimated peak of coefficient elements one row of a backward pass from `node` holds."""
    if node not in graph.peaks:
        graph.peaks[node] = _peak(graph, node)
    return graph.peaks[node]


def _peak(graph: Graph, node: int) -> int:
    live = {node: graph.most_elements(node)}
    peak = _COPIES * live[node]
    for index in range(node, 0, -1):
        size = live.pop(index, None)
        if size is None:
            continue
        widest = size
        for source in graph.nodes[index].inputs:
            live[source] = graph.most_elements(source)
            widest = max(widest, live[source])
        operator = graph.nodes[index].operator
        if isinstance(operator, Relaxed):
            widest = max(widest, operator.scratch_elements)
        peak = max(peak, sum(live.values()) + _COPIES * widest)
    return peak


def saved_elements(graph: Graph, node: int) -> int:
    """Estimated coefficient elements per row that autograd keeps for a backward pass."""
    reached = {node}
    total = 0
    for index in range(node, 0, -1):
        if index not in reached:
            continue
        reached.update(graph.nodes[index].inputs)
        size = graph.most_elements(index)
        operator = graph.nodes[index].operator
        if isinstance(operator, Activation):
            total += 3 * size
        elif isinstance(operator, Relaxed):
            total += 3 * size + _COPIES * operator.scratch_elements
    return total + num_elements(graph.input_shape)


def chunking(graph: Graph, node: int, batch: int, options: BoundOptions) -> Chunking:
    """The cut of rows at `node`: tiles where they are asked for, else what options allow.

    With a tight memory limit a single row is the smallest chunk; it is tried even when the
    estimate exceeds the limit.
    """
    if options.tile_rows is not None:
        return Chunking(options.tile_rows, padded=True)
    rows = options.chunk_rows
    if options.memory_bytes is not None:
        # 8 bytes cover float64; for float32 the estimate errs on the small side of chunks.
        per_row = 4 * batch * row_elements(graph, node)
        rows = min(rows, options.memory_bytes // max(per_row, 1))
    return Chunking(max(1, rows))
