"""β-CROWN: bounds of subproblems in which some neurons are split.

A split neuron of pre-activation z with sign s has s * z >= 0. For every β >= 0 the bound of
``rows . f(x) - β s z`` over the box is a bound of ``rows . f(x)`` over the subproblem, since
``β s z >= 0`` there; α and β are optimised together.

Reference: Wang et al. 2021 (arXiv 2103.06624), theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam
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
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as


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
        signs: per activation ``[B, F]``, +1 / -1 where the feature is split, else 0.
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
        """Minus the signs of activations that have any split; at `places` where these are known."""
        found = {index: -self.signs[index] for index in self.betas if index not in self.cuts}
        for index in self.places:
            found[index] = found[index].gather(1, self.places[index])
        return found

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
        taken = _Taken()
        with torch.no_grad():
            lower = self.lower(state, seen.__setitem__, taken.step)
            values = {}
            if 0 in seen:
                point = corner(seen[0].clone(), self.box)
                values = attained_values(self.graph, point, taken.lines)
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
        """The same with multipliers for split features only; those of others have no effect."""
        places, betas = dict(self.places), dict(self.betas)
        for index in self.betas.keys() & self.signs.keys() - self.places.keys():
            split = self.signs[index].abs()
            width = int(split.sum(dim=1).amax())
            places[index] = split.topk(width, dim=1, sorted=False).indices
            own = places[index].expand(*betas[index].shape[:2], -1)
            betas[index] = betas[index].gather(2, own)
        return replace(self, betas=betas, places=places)


class _Taken:
    """The lines that one backward pass takes, per activation."""

    def __init__(self) -> None:
        self.lines: dict[int, TakenLines] = {}

    def step(self, index: int, lines: Lines) -> TakenLines:
        """Remember them."""
        self.lines[index] = TakenLines(lines)
        return self.lines[index]


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
    betas = {
        index: batch.betas.get(index, sign.new_zeros(batch.rows.shape[0], *sign.shape)).clone()
        for index, sign in batch.signs.items()
        if bool((sign != 0).any())
    }
    for index, cuts in batch.cuts.items():
        if bool((cuts.signs != 0).any()):
            fresh = cuts.signs.new_zeros(2, batch.rows.shape[0], *cuts.signs.shape[1:])
            betas[index] = batch.betas.get(index, fresh).clone()
    with counted_as(MemoryKind.MULTIPLIERS):
        alphas = {index: alpha.clone() for index, alpha in batch.alphas.items()}
    batch = replace(batch, alphas=alphas, betas=betas)
    if options.iterations == 0:
        with torch.no_grad():
            return Optimized(batch.lower(batch.relaxations()), alphas, betas)
    return _Descent(batch, options).run(open_rows, out_of_time, stop_early)


class _Descent:
    """One run of the optimiser. Subproblems that are done leave the batch on the way."""

    def __init__(self, batch: Subproblems, options: BetaOptions) -> None:
        self.options = options
        self.closed_form = relu_like(batch.graph)
        if self.closed_form:
            batch = batch.packed()
        self.first = batch
        self.best = torch.full_like(batch.rows.flatten(2)[..., 0], -torch.inf)
        self.kept = Optimized(self.best, dict(batch.alphas), dict(batch.betas))
        self.place = torch.arange(batch.count, device=batch.rows.device)
        self.working = _leaves(batch, None)
        self.gradient = _in_closed_form if self.closed_form else _by_autograd
        self.limits: list[tuple[Tensor, Tensor] | None] | None = None
        self.state = self._relaxations()
        self.adam = ProjectedAdam(self._groups(), options.decay)

    def _relaxations(self) -> Relaxations:
        """Of the working batch. In closed form α holds the exact slopes of stable neurons."""
        state = self.working.relaxations()
        if not self.closed_form:
            return state
        self.limits = []
        for index, alpha in self.working.alphas.items():
            operator = self.working.graph.nodes[index].operator
            if not isinstance(operator, Relu):
                raise TypeError(f"node {index}: the closed form is for ReLU alone")
            settled, slopes, limits = operator.settle(state.relaxation(index), alpha.detach())
            alpha.detach().copy_(slopes)
            state.relaxed[index] = settled
            self.limits.append(limits)
        return state

    def run(
        self,
        open_rows: Callable[[Tensor], Tensor],
        out_of_time: Callable[[float], bool],
        stop_early: bool,
    ) -> Optimized:
        options = self.options
        for iteration in range(options.iterations + 1):
            lower, gradients = self.gradient(self.working, self.state)
            last = iteration == options.iterations
            self._keep(lower)
            wanted = open_rows(self.best)[:, self.place]
            if stop_early and not bool(wanted.any()):
                break
            if last or out_of_time(0.0):
                break
            # Those that are done move on with the others; what they met best is kept.
            self.adam.move(gradients(), ascend=True)
            for moved in (self.working.alphas, self.working.betas):
                self.working.graph.neurons.agree_on(moved)
            if options.prune_ratio is not None and iteration % _NARROW_EVERY == _NARROW_EVERY - 1:
                self._narrow(wanted.any(dim=0), options.prune_ratio)
        return replace(self.kept, lower=self.best, betas=self._kept_betas())

    def _kept_betas(self) -> dict[int, Tensor]:
        """One per feature."""
        found = dict(self.kept.betas)
        for index, places in self.first.places.items():
            own = found[index]
            every = own.new_zeros(own.shape[0], *self.first.signs[index].shape)
            found[index] = every.scatter_(2, places.expand_as(own), own)
        return found

    def _keep(self, lower: Tensor) -> None:
        """Take over bounds that improved, with their α and β (whole rows: no mask, no where)."""
        better = lower > self.best[:, self.place]
        # Finite bounds come of finite α and β, and between finite ends this is a choice.
        if len(self.place) == self.best.shape[1] and bool(lower.isfinite().all()):
            torch.maximum(self.best, lower, out=self.best)
            every = bool(better.all())
            chosen = better.to(lower.dtype).unsqueeze(-1)
            for own, kept in self._own_and_kept():
                if every:
                    kept.copy_(own.detach())
                else:
                    kept.lerp_(own.detach(), chosen)
            return
        self.best[:, self.place] = torch.where(better, lower, self.best[:, self.place])
        for row in range(better.shape[0]):
            chosen = better[row].nonzero().squeeze(1)
            for own, kept in self._own_and_kept():
                source = own.detach()[..., row, :, :].index_select(-2, chosen)
                kept[..., row, :, :].index_copy_(-2, self.place[chosen], source)

    def _own_and_kept(self) -> Iterator[tuple[Tensor, Tensor]]:
        for own, kept in (
            (self.working.alphas, self.kept.alphas),
            (self.working.betas, self.kept.betas),
        ):
            for index, tensor in own.items():
                yield tensor, kept[index]

    def _narrow(self, unfinished: Tensor, ratio: float) -> None:
        """Go on without the finished subproblems once they are worth the copying."""
        finished = 1.0 - float(unfinished.double().mean())
        if finished in (0.0, 1.0) or finished < ratio:
            return
        index = unfinished.nonzero().squeeze(1)
        self.working = _leaves(self.working, index)
        self.place = self.place[index]
        self.state = self._relaxations()
        self.adam.select(self._groups(), index, -2)

    def _groups(self) -> list[ParameterGroup]:
        alphas, betas = self.working.alphas, self.working.betas
        return [
            ParameterGroup(list(alphas.values()), self.options.alpha_rate, 0.0, 1.0, self.limits),
            ParameterGroup(list(betas.values()), self.options.beta_rate, 0.0, None),
        ]


_NARROW_EVERY = 4

_Gradients = Callable[[], list[Tensor | None]]
"""For each α, then each β: the gradient of the sum of the bounds in it."""


def _by_autograd(batch: Subproblems, state: Relaxations) -> tuple[Tensor, _Gradients]:
    lower = batch.lower(state)
    leaves = [*batch.alphas.values(), *batch.betas.values()]

    def gradients() -> list[Tensor | None]:
        if not lower.requires_grad:
            return [None] * len(leaves)
        return list(torch.autograd.grad(lower.sum(), leaves, allow_unused=True))

    return lower.detach(), gradients


def _in_closed_form(batch: Subproblems, state: Relaxations) -> tuple[Tensor, _Gradients]:
    """For ReLU: with A the coefficients of its output and z its input where the bound is attained,
    ``max(A, 0) z`` in α, and ``-s z`` in β. Where a neuron is stable the limits of α hold it.
    """
    at_input: list[Tensor] = []
    taken = _Taken()

    def observe(index: int, coeffs: Tensor) -> None:
        if index == 0:
            at_input.append(coeffs)

    with torch.no_grad():
        lower = batch.lower(state, observe, taken.step)

    def gradients() -> list[Tensor | None]:
        values = {}
        if at_input:
            # Last use of the coefficients; a reduction's are one number seen many times.
            point = corner(at_input.pop().contiguous(), batch.box)
            values = attained_values(batch.graph, point, taken.lines)
        with counted_as(MemoryKind.MULTIPLIERS):
            return [
                *(_in_alpha(index, taken.lines, values) for index in batch.alphas),
                *(_in_beta(batch, index, values) for index in batch.betas),
            ]

    return lower, gradients


def _in_alpha(
    index: int, taken: Mapping[int, TakenLines], values: Mapping[int, Tensor]
) -> Tensor | None:
    if index not in values:
        return None
    return taken[index].in_lower_slope(values[index]).unsqueeze(0)


def _in_beta(batch: Subproblems, index: int, values: Mapping[int, Tensor]) -> Tensor | None:
    if index not in values:
        return None
    own = values[index]
    if index in batch.places:
        own = own.gather(2, batch.places[index].expand(own.shape[0], -1, -1))
    return batch.against[index] * own


def _leaves(batch: Subproblems, index: Tensor | None) -> Subproblems:
    """The subproblems at `index` (None = all) with α and β as fresh leaves of the gradient."""

    def leaf(tensor: Tensor) -> Tensor:
        chosen = tensor.detach()
        chosen = chosen.clone() if index is None else chosen.index_select(-2, index)
        return chosen.requires_grad_(True)

    with counted_as(MemoryKind.MULTIPLIERS):
        alphas = {key: leaf(alpha) for key, alpha in batch.alphas.items()}
        betas = {key: leaf(beta) for key, beta in batch.betas.items()}
    if index is None:
        return replace(batch, alphas=alphas, betas=betas)
    shared = batch.box.lower.shape[0] == 1
    box = batch.box if shared else batch.box.select(index)
    return replace(
        batch,
        box=box,
        rows=batch.rows.index_select(1, index),
        bounds={node: bounds.select(index) for node, bounds in batch.bounds.items()},
        signs={key: sign.index_select(0, index) for key, sign in batch.signs.items()},
        cuts={key: cuts.select(index) for key, cuts in batch.cuts.items()},
        places={key: places.index_select(0, index) for key, places in batch.places.items()},
        fixed_alphas={key: own.index_select(-2, index) for key, own in batch.fixed_alphas.items()},
        alphas=alphas,
        betas=betas,
    )


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
