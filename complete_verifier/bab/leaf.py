"""Decide a subproblem whose neurons are all fixed: there the network is linear.

A linear program over the input gives the multipliers of the split constraints; the bound itself is
computed by the ordinary backward pass with those multipliers as β, so that a solver's tolerance
never becomes part of a proof. The program's minimiser is returned for the other answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np
import torch

from auto_LiRPA_patches.engine.backward import input_form
from auto_LiRPA_patches.engine.rows import BatchRows, NeuronRows
from auto_LiRPA_patches.engine.subproblems import Subproblems, splittable
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features, FeatureSpan
from complete_verifier.bounds.rounding import allowance_of

# An infeasible leaf's certificate is a direction; scaled far enough, its bound exceeds any margin.
_RAY_SCALES = (1.0, 1e3, 1e6)


@dataclass(frozen=True, eq=False)
class _Program:
    """``min t`` with ``t >= rows_r . x + constant_r`` and ``splits x >= limits`` over the box.

    Attributes:
        rows: ``[S, I]`` float64; on the leaf, a clause's functionals as functions of the input.
        constants: ``[S]``, their constants minus their thresholds.
        splits: ``[C, I]``, one row per split neuron in their order.
        limits: ``[C]``.
    """

    rows: np.ndarray
    constants: np.ndarray
    splits: np.ndarray
    limits: np.ndarray


def decide_leaf(bounding: Bounding, leaf: DomainBatch) -> tuple[bool, np.ndarray]:
    """Try to exclude one leaf exactly.

    A clause of several rows can be impossible although each row alone can be met; the program's
    multipliers then combine the rows into one functional that cannot be.

    Args:
        bounding: the region's.
        leaf: one subproblem without open neurons.

    Beside products and softmax a leaf's network is not linear, and the program would be about
    something else; such a leaf stays as its bounds left it.

    Returns:
        Whether it is excluded, and ``[n, num_inputs]`` inputs worth trying as counterexamples.
    """
    signs = bounding.signs(leaf)
    problem = bounding.subproblems(leaf, signs)
    if not splittable(problem.graph):
        return False, np.zeros((0, problem.box.lower.numel()))
    splits = _splits(bounding.features, signs[0])
    thresholds = bounding.thresholds(leaf)[:, 0].cpu().numpy()
    program = _program(problem, splits, thresholds)
    nowhere = np.zeros((0, program.rows.shape[1]))
    # Ranks that share the network's neurons go on with one solution.
    group = problem.graph.neurons.group
    solved = group.broadcast_object(_solve(problem, program) if group.rank == 0 else None)
    if solved is None:
        return False, nowhere
    duals, point = solved
    for weights, multipliers in duals:
        betas = _betas(bounding.features, splits, problem.rows, multipliers)
        if _excluded(problem, thresholds, weights, betas, bounding.features):
            return True, nowhere
    return False, nowhere if point is None else point[None]


@dataclass(frozen=True, eq=False)
class _Split:
    """The split features of one activation, as counted over all ranks.

    Attributes:
        span: the activation's features.
        chosen: ``[n]`` places in the span.
        signs: ``[n]``.
    """

    span: FeatureSpan
    chosen: torch.Tensor
    signs: torch.Tensor

    @property
    def rows(self) -> NeuronRows:
        """The neurons, one row each."""
        elements = self.span.elements
        return NeuronRows(self.chosen if elements is None else elements[self.chosen], self.signs)


def _splits(features: Features, signs: torch.Tensor) -> list[_Split]:
    """Per activation with splits, these; ``signs [T]``."""
    found = []
    for span in features.spans:
        own = signs[span.offset : span.stop]
        chosen = own.nonzero().squeeze(1)
        if span.kink is not None and chosen.numel():
            found.append(_Split(span, chosen, own[chosen]))
    return found


def _betas(
    features: Features, splits: list[_Split], like: torch.Tensor, multipliers: np.ndarray
) -> dict[int, torch.Tensor]:
    """``[1, 1, F]`` per activation with splits, from the multipliers in their order."""
    table = like.new_zeros(1, 1, features.total)
    start = 0
    for split in splits:
        own = torch.from_numpy(multipliers[start : start + len(split.chosen)])
        table[0, 0, split.chosen + split.span.offset] = own.to(like)
        start += len(split.chosen)
    every = features.split(table)
    return {split.span.activation: every[split.span.activation] for split in splits}


def _excluded(
    problem: Subproblems,
    thresholds: np.ndarray,
    weights: np.ndarray,
    betas: dict[int, torch.Tensor],
    features: Features,
) -> bool:
    """Whether ``weights . rows``, with these multipliers as β, exceeds its threshold for sure."""
    like = problem.rows
    rows = like[:, 0].flatten(1).double().cpu().numpy()
    exact = weights @ rows
    mixed = torch.from_numpy(exact).to(like)
    tried = replace(
        problem,
        rows=mixed.view(1, 1, *problem.graph.output_shape),
        alphas={index: alpha[:, :1] for index, alpha in problem.alphas.items()},
        betas=betas,
    )
    at_input: list[torch.Tensor] = []

    def observe(index: int, coeffs: torch.Tensor) -> None:
        if index == 0:
            at_input.append(coeffs)

    with torch.no_grad():
        state = tried.relaxations()
        lower = tried.lower(state, observe)[0, 0]
        output = state.interval(problem.graph.output)
        size = lower.abs() + _multiplied(problem, betas, features)
        for coeffs in at_input:
            size = size + coeffs[0, 0].flatten().abs() @ _largest(problem.box)
        size = problem.graph.neurons.agreed(size)
    # The functional was rounded to the bounds' precision; what that moved is taken off. So is what
    # rounding may account for: large multipliers add up large numbers.
    moved = np.abs(exact - mixed.double().cpu().numpy()) @ _largest(output).double().cpu().numpy()
    slack = moved + float(allowance_of(size))
    return bool(float(lower) - slack > weights @ thresholds)


def _multiplied(
    problem: Subproblems, betas: dict[int, torch.Tensor], features: Features
) -> torch.Tensor:
    """``sum of beta * |z|`` over the split neurons z, at most: a scalar."""
    if not betas:
        return problem.rows.new_zeros(())
    none = problem.rows.new_zeros
    every = [betas.get(s.activation, none(1, 1, s.width)) for s in features.spans]
    largest = features.own_bounds(problem.bounds)[0].abs().amax(dim=0)
    return features.joined(every)[0, 0] @ largest


def _largest(bounds: Interval) -> torch.Tensor:
    """Largest absolute value of each element of the first box, ``[N]``."""
    return torch.maximum(bounds.lower.abs(), bounds.upper.abs())[0].flatten()


def _solve(
    problem: Subproblems, program: _Program
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray | None] | None:
    """Weights of the rows with multipliers of the splits to try, and the minimiser if any."""
    solver = _Solver()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")  # so that infeasibility comes with a certificate
    solver.passModel(_model(problem, program))
    solver.run()
    status, count = solver.getModelStatus(), len(program.constants)
    if status == highspy.HighsModelStatus.kOptimal:
        solution = solver.getSolution()
        duals = np.maximum(np.array(solution.row_dual), 0.0)
        weights = duals[:count] / max(float(duals[:count].sum()), 1e-30)
        return [(weights, duals[count:])], np.array(solution.col_value)[:-1]
    if status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = solver.getDualRay()
        if has_ray:
            even = np.full(count, 1.0 / count)
            sides = [np.maximum(sign * np.array(ray)[count:], 0.0) for sign in (1.0, -1.0)]
            return [(even, scale * side) for side in sides for scale in _RAY_SCALES], None
    return None


class _Solver(highspy.Highs):
    """Silent from its first call on: the constructor already enables callbacks, and says so."""

    def enableCallbacks(self) -> None:  # noqa: N802 - the solver's name
        self.silent()
        super().enableCallbacks()


def _program(problem: Subproblems, splits: list[_Split], thresholds: np.ndarray) -> _Program:
    state = problem.relaxations()
    graph, box = problem.graph, problem.box
    width = box.lower.numel()
    with torch.no_grad():
        coeffs, bias = input_form(
            graph,
            box,
            graph.output,
            BatchRows(problem.rows),
            lambda index: state.lines(index, problem.alphas),
        )
        rows = _flat(coeffs, problem.rows.shape[0], width)
        constants = _constant(bias, problem.rows.shape[0]) - thresholds
        blocks, limits = [np.zeros((0, width))], [np.zeros(0)]
        for split in splits:
            source, count = split.span.source, len(split.chosen)
            coeffs, bias = input_form(
                graph, box, source, split.rows, lambda i: state.lines(i, None)
            )
            blocks.append(_flat(coeffs, count, width))
            limits.append(-_constant(bias, count))
    return _Program(rows, constants, np.concatenate(blocks), np.concatenate(limits))


def _flat(coeffs: torch.Tensor | None, count: int, width: int) -> np.ndarray:
    if coeffs is None:
        return np.zeros((count, width))
    return coeffs[:, 0].flatten(1).double().cpu().numpy()


def _constant(bias: torch.Tensor | None, count: int) -> np.ndarray:
    return np.zeros(count) if bias is None else bias[:, 0].double().cpu().numpy()


def _model(problem: Subproblems, program: _Program) -> highspy.HighsLp:
    """The program in the solver's form; its last column is t."""
    count, width = program.rows.shape
    top = np.hstack([-program.rows, np.ones((count, 1))])
    bottom = np.hstack([program.splits, np.zeros((len(program.limits), 1))])
    matrix = np.vstack([top, bottom])
    infinity = highspy.kHighsInf
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = width + 1, len(matrix)
    model.col_cost_ = np.append(np.zeros(width), 1.0)
    lower, upper = (side.flatten().double().cpu().numpy() for side in _sides(problem))
    model.col_lower_, model.col_upper_ = np.append(lower, -infinity), np.append(upper, infinity)
    model.row_lower_ = np.append(program.constants, program.limits)
    model.row_upper_ = np.full(len(matrix), infinity)
    places = [np.flatnonzero(row) for row in matrix]
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(p) for p in places])])
    model.a_matrix_.index_ = np.concatenate(places).astype(np.int32)
    values = [row[own] for row, own in zip(matrix, places, strict=True)]
    model.a_matrix_.value_ = np.concatenate(values)
    return model


def _sides(problem: Subproblems) -> tuple[torch.Tensor, torch.Tensor]:
    return problem.box.lower, problem.box.upper
