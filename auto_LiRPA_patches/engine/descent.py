"""Optimise α and β of subproblems together, and keep the best bound each of them meets.

Where every relaxed node is a ReLU, the gradient has a closed form (`attained`), and little is kept
beside α, β and their moments: lines and coefficients of one backward pass. Bounds go once the lines
are made of them, and a pass's coefficients as soon as the gradient is.

Reference: Wang et al. 2021 (arXiv 2103.06624), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam
from auto_LiRPA_patches.engine.attained import attained_values, corner
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems, TakenSteps, relu_like
from auto_LiRPA_patches.operators.lines import TakenLines
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, counted_as


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
    in_place: bool = False,
) -> Optimized:
    """Optimise α and β of every subproblem together.

    Args:
        batch: the subproblems; its α and β are where the optimisation starts. What the caller does
            not hold either is freed on the way.
        open_rows: which ``[S, B]`` bounds are still worth improving, as bool.
        out_of_time: asked before each step.
        stop_early: end when no row is open.
        in_place: the α returned are those of `batch`, overwritten.

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
    alphas = dict(batch.alphas)
    if not in_place:
        with counted_as(MemoryKind.MULTIPLIERS):
            alphas = {index: alpha.clone() for index, alpha in alphas.items()}
    batch = replace(batch, alphas=alphas, betas=betas)
    if options.iterations == 0:
        with torch.no_grad():
            return Optimized(batch.lower(batch.relaxations()), alphas, betas)
    descent = _Descent(batch, options)
    del batch  # its bounds are not needed any more
    return descent.run(open_rows, out_of_time, stop_early)


class _Descent:
    """One run of the optimiser. Subproblems that are done leave the batch on the way."""

    def __init__(self, batch: Subproblems, options: BetaOptions) -> None:
        self.options = options
        self.closed_form = relu_like(batch.graph)
        self.widths = {index: int(sign.shape[1]) for index, sign in batch.signs.items()}
        if self.closed_form:
            batch = batch.packed()
        self.places = batch.places
        lower = torch.full_like(batch.rows.flatten(2)[..., 0], -torch.inf)
        self.result = Optimized(lower, dict(batch.alphas), dict(batch.betas))
        self.best = self.result  # of those that are still in the batch
        self.place: Tensor | None = None  # where in the result they belong; None = everywhere
        self.working = _leaves(batch, None)
        self.gradient = _in_closed_form if self.closed_form else _by_autograd
        if self.closed_form:
            self.working, self.state = self.working.settled()
        else:
            self.state = self.working.relaxations()
        self.adam = ProjectedAdam(self._groups(), options.decay)

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
            wanted = open_rows(self._best_of_all())
            if self.place is not None:
                wanted = wanted[:, self.place]
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
        self._put_back()
        return replace(self.result, betas=self._kept_betas())

    def _best_of_all(self) -> Tensor:
        """Best bounds ``[S, B]`` of all subproblems."""
        if self.place is not None:
            self.result.lower[:, self.place] = self.best.lower
        return self.result.lower

    def _put_back(self) -> None:
        """Bring the result up to date with what those in the batch met."""
        self._best_of_all()
        if self.place is None:
            return
        for own, kept in zip(_tensors(self.best), _tensors(self.result), strict=True):
            kept.index_copy_(-2, self.place, own)

    def _kept_betas(self) -> dict[int, Tensor]:
        """One per feature."""
        found = dict(self.result.betas)
        for index, places in self.places.items():
            own = found[index]
            every = own.new_zeros(*own.shape[:2], self.widths[index])
            found[index] = every.scatter_(2, places.expand_as(own), own)
        return found

    def _keep(self, lower: Tensor) -> None:
        """Take over bounds that improved, with their α and β."""
        best = self.best.lower
        better = lower > best
        pairs = list(zip(_tensors(self.working), _tensors(self.best), strict=True))
        if not bool(lower.isfinite().all()):
            # No mask of choices: what is not finite would enter into it.
            best.copy_(torch.where(better, lower, best))
            for row in range(better.shape[0]):
                chosen = better[row].nonzero().squeeze(1)
                for own, kept in pairs:
                    source = own.detach()[..., row, :, :].index_select(-2, chosen)
                    kept[..., row, :, :].index_copy_(-2, chosen, source)
            return
        # Finite bounds come of finite α and β, and between finite ends this is a choice.
        torch.maximum(best, lower, out=best)
        every = bool(better.all())
        chosen = better.to(lower.dtype).unsqueeze(-1)
        for own, kept in pairs:
            if every:
                kept.copy_(own.detach())
            else:
                kept.lerp_(own.detach(), chosen)

    def _narrow(self, unfinished: Tensor, ratio: float) -> None:
        """Go on without the finished subproblems once they are worth the copying."""
        finished = 1.0 - float(unfinished.double().mean())
        if finished in (0.0, 1.0) or finished < ratio:
            return
        self._put_back()
        index = unfinished.nonzero().squeeze(1)
        settled = self.state.relaxed
        self.working = _leaves(self.working, index)
        self.place = index if self.place is None else self.place[index]
        self.best = _select(self.best, index)
        self.state = self.working.relaxations()
        if self.closed_form:
            for activation in self.working.alphas:
                self.state.relaxed[activation] = settled[activation].select(index)
        self.adam.select(self._groups(), index, -2)

    def _groups(self) -> list[ParameterGroup]:
        alphas, betas = self.working.alphas, self.working.betas
        return [
            ParameterGroup(list(alphas.values()), self.options.alpha_rate, 0.0, 1.0),
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
    ``max(A, 0) z`` in α, and ``-s z`` in β. In α of a stable neuron, whose slope is exact, zero.
    """
    at_input: list[Tensor] = []
    taken = TakenSteps()

    def observe(index: int, coeffs: Tensor) -> None:
        if index == 0:
            at_input.append(coeffs)

    with torch.no_grad():
        lower = batch.lower(state, observe, taken.step)

    def gradients() -> list[Tensor | None]:
        in_alpha: dict[int, Tensor] = {}
        in_beta: dict[int, Tensor] = {}

        def visit(index: int, values: Tensor) -> None:
            with counted_as(MemoryKind.MULTIPLIERS):
                step = taken.lines.pop(index)  # no longer needed, nor are its coefficients
                if index in batch.alphas:
                    in_alpha[index] = _in_alpha(step, values)
                if index in batch.betas:
                    in_beta[index] = _in_beta(batch, index, values)

        if at_input:
            # Last use of the coefficients; a reduction's are one number seen many times.
            point = corner(at_input.pop().contiguous(), batch.box)
            attained_values(batch.graph, point, taken.lines, visit)
        return [*map(in_alpha.get, batch.alphas), *map(in_beta.get, batch.betas)]

    return lower, gradients


def _in_alpha(step: TakenLines, values: Tensor) -> Tensor:
    gradient = step.in_lower_slope(values)
    chord = step.lines.upper_intercept
    if chord is not None:
        # Stable neurons' lines pass through zero; those of the others start below it.
        torch.ops.aten.threshold_backward.grad_input(gradient, chord, 0.0, grad_input=gradient)
    return gradient.unsqueeze(0)


def _in_beta(batch: Subproblems, index: int, values: Tensor) -> Tensor:
    if index in batch.places:
        values = values.gather(2, batch.places[index].expand(values.shape[0], -1, -1))
    return batch.against[index] * values


def _tensors(source: Subproblems | Optimized) -> list[Tensor]:
    """Every α, then every β."""
    return [*source.alphas.values(), *source.betas.values()]


def _select(best: Optimized, index: Tensor) -> Optimized:
    """A copy for the subproblems at `index`."""
    with counted_as(MemoryKind.MULTIPLIERS):
        return Optimized(
            best.lower[:, index],
            {key: own.index_select(-2, index) for key, own in best.alphas.items()},
            {key: own.index_select(-2, index) for key, own in best.betas.items()},
        )


def _leaves(batch: Subproblems, index: Tensor | None) -> Subproblems:
    """The subproblems at `index` (None = all) with α and β as fresh leaves of the gradient."""

    def leaf(tensor: Tensor) -> Tensor:
        chosen = tensor.detach()
        if index is None:
            chosen = chosen.clone(memory_format=torch.contiguous_format)
        else:
            chosen = chosen.index_select(-2, index)
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
