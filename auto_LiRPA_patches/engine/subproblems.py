"""β-CROWN: bounds of subproblems in which some neurons are split.

A split neuron of pre-activation z with sign s has s * z >= 0. For every β >= 0 the bound of
``rows . f(x) - β s z`` over the box is a bound of ``rows . f(x)`` over the subproblem, since
``β s z >= 0`` there; α and β are optimised together.

Reference: Wang et al. 2021 (arXiv 2103.06624), theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam
from auto_LiRPA_patches.engine.backward import Observe, lower_bounds
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import BatchRows
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines


@dataclass(frozen=True, kw_only=True)
class BetaOptions:
    """How α and β are optimised in branch and bound (`solver.beta-crown.*`).

    Attributes:
        iterations: gradient steps; 0 evaluates the given α and β once.
        alpha_rate, beta_rate: Adam's initial steps.
        decay: factor on the steps after each iteration.
    """

    iterations: int = 50
    alpha_rate: float = 0.01
    beta_rate: float = 0.05
    decay: float = 0.98


@dataclass(frozen=True)
class Subproblems:
    """B subproblems over one input box (or one box each), ready to be bounded.

    Attributes:
        graph: the network.
        box: ``[1 or B, *input_shape]``.
        features: per activation, the elements it relaxes; None = all.
        rows: ``[S, B, *output_shape]`` functionals to bound from below.
        bounds: per bounded node ``[B, *shape]``, splits applied.
        signs: per activation ``[B, F]``, +1 / -1 where the feature is split, else 0.
        alphas: per activation ``[K, S, B, F]`` in [0, 1].
        betas: per activation ``[S, B, F]``, >= 0.
    """

    graph: Graph
    box: Interval
    features: Mapping[int, Tensor | None]
    rows: Tensor
    bounds: Mapping[int, Interval]
    signs: Mapping[int, Tensor]
    alphas: Mapping[int, Tensor]
    betas: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of subproblems B."""
        return int(self.rows.shape[1])

    def relaxations(self) -> Relaxations:
        """Relaxations over the subproblems' bounds; made once per optimisation."""
        state = Relaxations(self.graph, self.box, self.features)
        for node, bounds in self.bounds.items():
            state.set_bounds(node, bounds)
        return state

    def lower(self, state: Relaxations, observe: Observe | None = None) -> Tensor:
        """Lower bounds ``[S, B]`` with the present α and β; differentiable in both.

        Claim: ``rows . f(x) >= result`` for every x of the subproblem.
        """

        def lines_at(index: int) -> object:
            lines = state.lines(index, self.alphas)
            beta, sign = self.betas.get(index), self.signs.get(index)
            if beta is None or sign is None or not isinstance(lines, Lines):
                return lines
            return replace(lines, shift=-beta * sign)

        rows = BatchRows(self.rows)
        return lower_bounds(self.graph, self.box, self.graph.output, rows, lines_at, observe)


@dataclass(frozen=True)
class Optimized:
    """Best bounds of a batch, and the α and β that gave them.

    Attributes:
        lower: ``[S, B]``.
        alphas, betas: as in `Subproblems`.
    """

    lower: Tensor
    alphas: dict[int, Tensor]
    betas: dict[int, Tensor]


def optimize_subproblems(
    batch: Subproblems,
    options: BetaOptions,
    open_rows: Callable[[Tensor], Tensor],
    out_of_time: Callable[[float], bool],
    *,
    stop_early: bool = True,
) -> Optimized:
    """Optimise α and β of every subproblem together.

    Args:
        batch: the subproblems; its α and β are where the optimisation starts.
        open_rows: which ``[S, B]`` bounds are still worth improving, as bool.
        out_of_time: asked before each step.
        stop_early: end when no row is open.

    Returns:
        Per subproblem and row the best bound met. A NaN never replaces a bound.
    """
    state = batch.relaxations()
    betas = {
        index: batch.betas.get(index, sign.new_zeros(batch.rows.shape[0], *sign.shape))
        for index, sign in batch.signs.items()
        if bool((sign != 0).any())
    }
    working = replace(
        batch,
        alphas={index: alpha.clone() for index, alpha in batch.alphas.items()},
        betas={index: beta.clone() for index, beta in betas.items()},
    )
    if options.iterations == 0:
        with torch.no_grad():
            return Optimized(working.lower(state), dict(working.alphas), dict(working.betas))
    return _descend(working, state, options, open_rows, out_of_time, stop_early)


def _descend(
    working: Subproblems,
    state: Relaxations,
    options: BetaOptions,
    open_rows: Callable[[Tensor], Tensor],
    out_of_time: Callable[[float], bool],
    stop_early: bool,
) -> Optimized:
    alphas, betas = list(working.alphas.values()), list(working.betas.values())
    for leaf in (*alphas, *betas):
        leaf.requires_grad_(True)
    adam = ProjectedAdam(
        [
            ParameterGroup(alphas, options.alpha_rate, 0.0, 1.0),
            ParameterGroup(betas, options.beta_rate, 0.0, None),
        ],
        options.decay,
    )
    best = torch.full_like(working.rows.flatten(2)[..., 0], -torch.inf)
    kept = Optimized(
        best,
        {index: alpha.detach().clone() for index, alpha in working.alphas.items()},
        {index: beta.detach().clone() for index, beta in working.betas.items()},
    )
    for iteration in range(options.iterations + 1):
        lower = working.lower(state)
        kept = _keep(kept, working, lower.detach())
        wanted = open_rows(kept.lower)
        finished = stop_early and not bool(wanted.any())
        if finished or iteration == options.iterations or not lower.requires_grad:
            break
        if out_of_time(0.0):
            break
        adam.descend(-torch.where(wanted, lower, torch.zeros_like(lower)).sum())
    return kept


def _keep(kept: Optimized, working: Subproblems, lower: Tensor) -> Optimized:
    """Take over every row whose bound improved, with its α and β."""
    better = lower > kept.lower
    if bool(better.all()):
        chosen = None
    else:
        chosen = better.unsqueeze(-1)
    for own, best in ((working.alphas, kept.alphas), (working.betas, kept.betas)):
        for index, tensor in own.items():
            source = tensor.detach()
            best[index].copy_(
                source if chosen is None else torch.where(chosen, source, best[index])
            )
    return replace(kept, lower=torch.where(better, lower, kept.lower))


def relu_like(graph: Graph) -> bool:
    """Whether every relaxed node is an activation whose split at zero makes it exact."""
    from auto_LiRPA_patches.operators.relu import Relu

    return all(isinstance(graph.nodes[index].operator, Relu) for index in graph.relaxed)


def activation_input(graph: Graph, index: int) -> int:
    """The node an activation's splits speak of: its input."""
    if not isinstance(graph.nodes[index].operator, Activation):
        raise TypeError(f"{graph.nodes[index].name} is not an activation")
    return graph.nodes[index].inputs[0]
