"""β-CROWN: bounds of subproblems in which some neurons are split.

A split neuron of pre-activation z with sign s has s * z >= 0. For every β >= 0 the bound of
``rows . f(x) - β s z`` over the box is a bound of ``rows . f(x)`` over the subproblem, since
``β s z >= 0`` there; α and β are optimised together.

Reference: Wang et al. 2021 (arXiv 2103.06624), theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.attained import attained_values, corner
from auto_LiRPA_patches.engine.backward import Observe, lower_bounds
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.point_splits import PointSplits
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import BatchRows
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines, LineStep, TakenLines
from auto_LiRPA_patches.operators.relu import Relu


@dataclass(frozen=True, kw_only=True)
class BetaOptions:
    """How α and β are optimised in branch and bound (`solver.beta-crown.*`).

    Attributes:
        iterations: gradient steps; 0 evaluates the given α and β once.
        alpha_rate, beta_rate: Adam's initial steps.
        decay: factor on the steps after each iteration.
        prune_ratio: fraction of finished subproblems from which these leave the batch
            (`bab.pruning_in_iteration_ratio`); None keeps all to the end. Beside copying, it
            changes the shapes that others are computed in, and so may change their last bits.
    """

    iterations: int = 50
    alpha_rate: float = 0.01
    beta_rate: float = 0.05
    decay: float = 0.98
    prune_ratio: float | None = 0.2


@dataclass(frozen=True)
class Subproblems:
    """B subproblems over one input box (or one box each), ready to be bounded.

    Attributes:
        graph: the network.
        box: ``[1 or B, *input_shape]``.
        features: per activation, the elements it relaxes; None = all.
        rows: ``[S, B, *output_shape]`` functionals to bound from below.
        bounds: per bounded node ``[B, *shape]``, splits applied.
        signs: per activation ``[B, F]``, +1 / -1 where the feature is split, else 0; ``[B, D]``
            for those in `places`.
        alphas: per activation ``[K, S, B, F]`` in [0, 1].
        betas: per activation ``[S, B, F]``, >= 0; ``[2, S, B, F]`` for those in `cuts`.
        cuts: splits at points other than zero, per activation that can have any; these activations
            are not in `signs`.
        places: per activation whose β are for its split features only: which ones, ``[B, D]``. Its
            `betas` are ``[S, B, D]`` then.
        fixed_alphas: α of relaxed nodes that are not split, which is not optimised,
            ``[K, S, B, F]`` in [0, 1]: products, softmax, and in their company activations without
            a kink.
    """

    graph: Graph
    box: Interval
    features: Mapping[int, Tensor | None]
    rows: Tensor
    bounds: Mapping[int, Interval]
    signs: Mapping[int, Tensor]
    alphas: Mapping[int, Tensor]
    betas: Mapping[int, Tensor] = field(default_factory=dict)
    cuts: Mapping[int, PointSplits] = field(default_factory=dict)
    places: Mapping[int, Tensor] = field(default_factory=dict)
    fixed_alphas: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of subproblems B."""
        return int(self.rows.shape[1])

    @cached_property
    def against(self) -> dict[int, Tensor]:
        """Minus the signs of activations that have any split."""
        return {index: -self.signs[index] for index in self.betas if index not in self.cuts}

    def relaxations(self) -> Relaxations:
        """Relaxations over the subproblems' bounds; made once per optimisation."""
        state = Relaxations(self.graph, self.box, self.features)
        for node, bounds in self.bounds.items():
            state.set_bounds(node, bounds)
        return state

    def attained(self, state: Relaxations) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor]]:
        """Lower bounds as `lower`, and where they are attained.

        Returns:
            The bounds ``[S, B]``; per activation the coefficients ``[S, B, N]`` of its output,
            under index 0 those of the input; and per activation the values ``[S, B, F]`` of its
            relaxed features. No gradient.
        """
        seen: dict[int, Tensor] = {}
        taken = TakenSteps()
        with torch.no_grad():
            lower = self.lower(state, seen.__setitem__, taken.step)
            values: dict[int, Tensor] = {}
            if 0 in seen:
                point = corner(seen[0].clone(), self.box)
                attained_values(self.graph, point, taken.lines, values.__setitem__)
        return lower, {index: coeffs.flatten(2) for index, coeffs in seen.items()}, values

    def lower(
        self,
        state: Relaxations,
        observe: Observe | None = None,
        step: Callable[[int, Lines], LineStep] | None = None,
    ) -> Tensor:
        """Lower bounds ``[S, B]`` with the present α and β; differentiable in both.

        Claim: ``rows . f(x) >= result`` for every x of the subproblem.

        Args:
            state: of `relaxations`.
            observe: see `lower_bounds`.
            step: makes of an activation's lines the step to take through it; None takes the
                lines themselves.
        """

        def lines_at(index: int) -> object:
            lines = self.lines(state, index)
            # Other operators may use lines too, of more elements than their input has.
            own = isinstance(self.graph.nodes[index].operator, Activation)
            return step(index, lines) if step and own and isinstance(lines, Lines) else lines

        rows = BatchRows(self.rows)
        return lower_bounds(self.graph, self.box, self.graph.output, rows, lines_at, observe)

    def lines(self, state: Relaxations, index: int) -> object:
        """The relaxation of node `index` with the present α and β; lines for an activation."""
        alphas = self.fixed_alphas if index in self.fixed_alphas else self.alphas
        lines = state.lines(index, alphas)
        if not isinstance(lines, Lines):
            return lines
        beta, sign = self.betas.get(index), self.against.get(index)
        if beta is not None and index in self.cuts:
            shift, constant = self.cuts[index].penalty(beta)
            return replace(lines, shift=shift, constant=constant)
        if beta is not None and sign is not None:
            return replace(lines, shift=beta * sign, places=self.places.get(index))
        return lines

    def packed(self) -> Subproblems:
        """The same with multipliers and signs of split features only; others have no effect."""
        places, betas = dict(self.places), dict(self.betas)
        signs = {index: self.signs[index] for index in self.betas.keys() & self.signs.keys()}
        for index in signs.keys() - self.places.keys():
            split = signs[index].abs()
            width = int(split.sum(dim=1).amax())
            places[index] = split.topk(width, dim=1, sorted=False).indices
            own = places[index].expand(*betas[index].shape[:2], -1)
            betas[index] = betas[index].gather(2, own)
            signs[index] = signs[index].gather(1, places[index])
        return replace(self, betas=betas, places=places, signs=signs)

    def settled(self) -> tuple[Subproblems, Relaxations]:
        """For ReLU alone: the relaxations, and the same subproblems without the bounds behind them.

        The α of stable neurons are overwritten with their exact slopes, and must stay so for their
        lines to be exact. Beside α, lines are then all that is held of an activation.

        Raises:
            TypeError: there is another activation.
        """
        state = self.relaxations()
        for index, alpha in self.alphas.items():
            operator = self.graph.nodes[index].operator
            if not isinstance(operator, Relu):
                raise TypeError(f"node {index}: the closed form is for ReLU alone")
            state.relaxed[index] = operator.settle(state.relaxation(index), alpha.detach())
        others = set(self.graph.relaxed) - self.alphas.keys()
        used = {source for index in others for source in self.graph.nodes[index].inputs}
        state.bounds = {node: own for node, own in self.bounds.items() if node in used}
        return replace(self, bounds=dict(state.bounds)), state


class TakenSteps:
    """The lines that one backward pass takes, per activation."""

    def __init__(self) -> None:
        self.lines: dict[int, TakenLines] = {}

    def step(self, index: int, lines: Lines) -> TakenLines:
        """Remember them."""
        self.lines[index] = TakenLines(lines)
        return self.lines[index]


def relu_like(graph: Graph) -> bool:
    """Whether every relaxed node is an activation whose split at zero makes it exact."""
    return all(isinstance(graph.nodes[index].operator, Relu) for index in graph.relaxed)


def splittable(graph: Graph) -> bool:
    """Whether every relaxed node is an activation, whose input can be split at points."""
    return all(isinstance(graph.nodes[index].operator, Activation) for index in graph.relaxed)


def has_kink(graph: Graph, node: int) -> bool:
    """Whether a node is an activation that one split makes exact."""
    operator = graph.nodes[node].operator
    return isinstance(operator, Activation) and operator.kink is not None
