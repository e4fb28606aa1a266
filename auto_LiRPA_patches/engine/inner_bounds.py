"""Bounds of inner neurons over subproblems: what splits below a layer tell about it.

A row at an inner node is a functional like one of the output, of a network that ends there: α, and
β of the splits below it, bound it over every subproblem.

Reference: Wang et al. 2021 (arXiv 2103.06624), section 3.3 (bounds of intermediate layers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.descent import optimize_subproblems
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.rows import Chunking, NeuronRows
from auto_LiRPA_patches.engine.schedule import elements_to_bound, put, sides
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems
from auto_LiRPA_patches.operators.interval import Interval


@dataclass(frozen=True)
class InnerRows:
    """Neurons of one node, with the α that bounded them at the root.

    Attributes:
        node: index of the node.
        elements: ``[F]`` ascending.
        alphas: per activation below ``[K, 2F, 1, F']``, lower bounds' rows first.
    """

    node: int
    elements: Tensor
    alphas: Mapping[int, Tensor]

    def select(self, wanted: Tensor) -> InnerRows:
        """The neurons at positions ``wanted [W]`` of `elements`."""
        both = torch.cat([wanted, wanted + self.elements.shape[0]])
        alphas = {index: alpha[:, both] for index, alpha in self.alphas.items()}
        return InnerRows(self.node, self.elements[wanted], alphas)


@dataclass(frozen=True)
class InnerEffort:
    """How inner neurons are bounded.

    Attributes:
        beta: steps of α and β; 0 iterations evaluate the root's α with β = 0.
        chunk_rows: rows of a node bounded together, for all subproblems of the batch.
        in_tiles: bound every row of a node in chunks of equal height, so that bits depend neither
            on the other subproblems nor on what is stable in them.
        out_of_time: asked before each step; steps not taken leave bounds looser.
    """

    beta: BetaOptions
    chunk_rows: int
    in_tiles: bool
    out_of_time: Callable[[float], bool]


def tighten(
    problem: Subproblems,
    inner: tuple[InnerRows, ...],
    effort: Callable[[InnerRows], InnerEffort],
) -> Subproblems:
    """The same subproblems with inner bounds at least as tight, node by node from below.

    Args:
        problem: B subproblems with sound bounds.
        inner: in topological order.
        effort: for the rows of one node.
    """
    for rows in inner:
        bounds = _bounds(problem, rows, effort(rows))
        problem = replace(problem, bounds={**problem.bounds, rows.node: bounds})
    return problem


def _bounds(problem: Subproblems, rows: InnerRows, effort: InnerEffort) -> Interval:
    known = problem.bounds[rows.node]
    wanted = torch.arange(rows.elements.shape[0], device=rows.elements.device)
    if not effort.in_tiles:
        useful = elements_to_bound(problem.graph, rows.node, known, BoundOptions())
        wanted = torch.isin(rows.elements, useful).nonzero().squeeze(1)
    if wanted.numel() == 0:
        return known
    own = rows.select(wanted)
    both = NeuronRows.both_sides(own.elements, problem.rows.dtype)
    cut = Chunking(effort.chunk_rows, padded=effort.in_tiles)
    below = _ending_at(problem, rows.node)
    parts = []
    for start, stop in cut.ranges(both.count):
        part = _chunk(below, both.narrow(start, stop), own.alphas, start, effort)
        parts.append(part[: both.count - start])
    refined = put(problem.graph, rows.node, known, own.elements, sides(torch.cat(parts)))
    tighter = refined.intersect(known)
    # Bounds cross where the subproblem has no point, or by rounding; changed over, they hold there.
    return Interval(
        torch.minimum(tighter.lower, tighter.upper), torch.maximum(tighter.lower, tighter.upper)
    )


def _chunk(
    below: Subproblems,
    rows: NeuronRows,
    alphas: Mapping[int, Tensor],
    start: int,
    effort: InnerEffort,
) -> Tensor:
    """Lower bounds ``[S, B]`` of some rows; those beyond the last use its α."""
    place = torch.arange(start, start + rows.count)
    count = below.count
    own = {
        index: alpha[:, place.clamp(max=alpha.shape[1] - 1)].expand(-1, -1, count, -1)
        for index, alpha in alphas.items()
    }
    coeffs = rows.coefficients(below.graph, below.graph.output, count)
    fixed = {index: own.pop(index) for index in below.fixed_alphas.keys() & own.keys()}
    problem = replace(below, rows=coeffs, alphas=own, fixed_alphas=fixed)
    beta = replace(effort.beta, prune_ratio=None)

    def every(lower: Tensor) -> Tensor:
        return torch.ones_like(lower, dtype=torch.bool)

    return optimize_subproblems(problem, beta, every, effort.out_of_time, stop_early=False).lower


def _ending_at(problem: Subproblems, node: int) -> Subproblems:
    """The subproblems of the network up to `node`, without β."""
    graph: Graph = replace(problem.graph, nodes=problem.graph.nodes[: node + 1], output=node)
    reached = set(graph.relaxed)
    return replace(
        problem,
        graph=graph,
        bounds={index: problem.bounds[index] for index in graph.bounded},
        signs={index: sign for index, sign in problem.signs.items() if index in reached},
        cuts={index: cuts for index, cuts in problem.cuts.items() if index in reached},
        fixed_alphas={i: own for i, own in problem.fixed_alphas.items() if i in reached},
        betas={},
    )
