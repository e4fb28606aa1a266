"""The one backward pass: from rows at a node down to the input box.

Claim: for every x in box b, ``rows_s . node(x) >= result[s, b]``.
Reference: Zhang et al. 2018 (arXiv 1811.00866), theorem 3.2; Xu et al. 2020 (arXiv 2002.12920),
algorithm 1, for general graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.rows import Rows
from auto_LiRPA_patches.engine.window_steps import window_step
from auto_LiRPA_patches.operators.ball import BallBox
from auto_LiRPA_patches.operators.base import sum_bias
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.windows import Windows
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as

LinesAt = Callable[[int], Any]
Observe = Callable[[int, Tensor], None]


def lower_bounds(
    graph: Graph,
    box: Interval,
    node: int,
    rows: Rows,
    lines_at: LinesAt,
    observe: Observe | None = None,
) -> Tensor:
    """Lower bounds of ``rows`` at ``node`` over the input boxes.

    Args:
        graph: the network.
        box: ``[B, *input_shape]``, or ``[1, *input_shape]`` shared by a batch of subproblems.
        node: index of the start node.
        rows: S functionals of its value.
        lines_at: for a node that needs bounds, its relaxation for these rows.
        observe: called with the index and the coefficients ``[S, B, *shape]`` of each node that
            needs lines, before its step, and of the input (index 0).

    Returns:
        ``[S, B]``, differentiable in the relaxations.
    """
    with counted_as(MemoryKind.COEFFICIENTS):
        coeffs, bias = _descend(graph, box, node, rows, lines_at, observe)
        if coeffs is None:
            if bias is None:
                shape = (rows.count, box.lower.shape[0])
                return torch.zeros(shape, dtype=box.lower.dtype, device=box.lower.device)
            return graph.neurons.agreed(overflow_to_nan(bias))
        if isinstance(coeffs, Windows) and not isinstance(box, BallBox):
            value = _concretize_windows(coeffs, box)
        else:
            value = concretize(_whole(coeffs).flatten(2), box)
        value = overflow_to_nan(value if bias is None else value + bias)
        return graph.neurons.agreed(value)


def input_form(
    graph: Graph,
    box: Interval,
    node: int,
    rows: Rows,
    lines_at: LinesAt,
    observe: Observe | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The linear function of the input that bounds `rows` from below.

    Args:
        as of `lower_bounds`.

    Returns:
        ``coeffs [S, B, *input_shape]`` and ``bias [S, B]``, None standing for zero, with
        ``rows . node(x) >= coeffs . x + bias`` for every x in the boxes.
    """
    coeffs, bias = _descend(graph, box, node, rows, lines_at, observe)
    return None if coeffs is None else _whole(coeffs), bias


def _descend(
    graph: Graph,
    box: Interval,
    node: int,
    rows: Rows,
    lines_at: LinesAt,
    observe: Observe | None,
) -> tuple[Tensor | Windows | None, Tensor | None]:
    """`input_form`, in windows where the rows came down in windows."""
    batch = box.lower.shape[0]
    graph.weights.expect(graph.handles_below(node))
    pending: dict[int, Tensor | Windows] = {}
    biases: list[Tensor | None] = []
    partial: list[Tensor | None] = []  # sums over this rank's neurons
    shortcut = rows.below(graph, node, batch)
    if shortcut is None:
        pending[node] = rows.coefficients(graph, node, batch)
    else:
        pending[graph.nodes[node].inputs[0]] = shortcut[0]
        biases.append(shortcut[1])
    del shortcut
    for index in range(node, 0, -1):
        if index not in pending:
            continue
        coeffs = pending.pop(index)
        operator = graph.nodes[index].operator
        if operator is None:
            raise ValueError(f"node {index} ({graph.nodes[index].name}) is a second input")
        lines = lines_at(index) if operator.needs_bounds else None
        step: tuple[tuple[Tensor | Windows, ...], Tensor | None] | None = None
        if isinstance(coeffs, Windows):
            step = window_step(graph, index, coeffs, lines)
        if step is None:
            coeffs = _whole(coeffs)
            if observe is not None and operator.needs_bounds:
                observe(index, coeffs)
            step = operator.backward(graph.weights, coeffs, lines)
        below, bias = step
        del coeffs
        (partial if index in graph.neurons.split else biases).append(bias)
        for source, part in zip(graph.nodes[index].inputs, below, strict=True):
            pending[source] = _added(pending[source], part) if source in pending else part
        del below, part, step
    if 0 in pending and observe is not None:
        observe(0, _whole(pending[0]))
    own = sum_bias(partial)
    biases.append(None if own is None else graph.neurons.total(own))
    return pending.pop(0, None), sum_bias(biases)


def _whole(coeffs: Tensor | Windows) -> Tensor:
    return coeffs.dense() if isinstance(coeffs, Windows) else coeffs


def _added(one: Tensor | Windows, other: Tensor | Windows) -> Tensor | Windows:
    """The sum of what two paths bring to a node."""
    if isinstance(one, Windows) and isinstance(other, Windows):
        total = one.plus(other)
        if total is not None:
            return total
    return _whole(one) + _whole(other)


def overflow_to_nan(lower: Tensor) -> Tensor:
    """Lower bounds in which +inf, which only an overflow can give, became NaN.

    The true sum may be anything; a NaN proves nothing and tightens nothing.
    """
    return lower.masked_fill(lower == torch.inf, torch.nan)


def concretize(coeffs: Tensor, box: Interval) -> Tensor:
    """``min over v in the box of coeffs . v``: ``[S, B, N]`` over ``[B, *shape]`` -> ``[S, B]``.

    In a box of which only a ball counts (`BallBox`), the greater of the two minima: a lower bound.
    """
    # Without a graph to make, the detour through autograd only takes time.
    graded = torch.is_grad_enabled()
    value: Tensor = _Concretize.apply(coeffs, box) if graded else _least(coeffs, box)
    if isinstance(box, BallBox):
        return torch.maximum(value, box.minimum(coeffs))
    return value


class _Concretize(torch.autograd.Function):
    """``min over the box of A x`` = max(A, 0) . lower + min(A, 0) . upper; keeps A's signs.

    One byte per element, as int8: a bool mask and a `torch.where` over it cost ten times as much.

    Taken at the corner itself: A . center - |A| . radius rounds the box inwards, and a functional
    that is one input would not even keep that input's bound.
    """

    @staticmethod
    def forward(ctx: Any, coeffs: Tensor, box: Interval) -> Tensor:
        ctx.box = box
        if coeffs.requires_grad or ctx.needs_input_grad[0]:
            ctx.save_for_backward(coeffs.sign().to(torch.int8))
        return _least(coeffs, box)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (sign,) = ctx.saved_tensors
        box: Interval = ctx.box
        center, radius = box.center.flatten(1), box.radius.flatten(1)
        # At zero any point between the corners is a subgradient; this one is the centre.
        corner = torch.addcmul(center, sign.to(center.dtype), radius, value=-1)
        return corner.mul_(grads[0].unsqueeze(-1)), None


def _least(coeffs: Tensor, box: Interval) -> Tensor:
    """``min over the box of coeffs . v``, ``[S, B]``; no gradient."""
    lower, upper = box.lower.flatten(1), box.upper.flatten(1)
    half = coeffs.clamp(min=0)
    value = _row_dot(half, lower)
    # Into the same memory: fresh pages cost more than the clamp.
    return value.add_(_row_dot(torch.clamp(coeffs, max=0, out=half), upper))


def _concretize_windows(windows: Windows, box: Interval) -> Tensor:
    """``[S, B]``: the minimum over the part of the box that each row sees; no gradient."""
    lower, upper = windows.gather(torch.stack([box.lower.flatten(1), box.upper.flatten(1)]))
    coeffs = windows.coeffs
    least = torch.addcmul(coeffs.clamp(min=0) * lower, coeffs.clamp(max=0), upper)
    return least.flatten(2).sum(-1)


def _row_dot(coeffs: Tensor, vector: Tensor) -> Tensor:
    """``[S, B, N] . [B, N] -> [S, B]``."""
    if vector.shape[0] == 1:
        return coeffs @ vector[0]
    return (coeffs * vector).sum(-1)  # a third of einsum's time
