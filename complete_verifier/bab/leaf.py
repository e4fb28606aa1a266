"""Decide a subproblem whose neurons are all fixed: there the network is linear.

A linear program over the input gives the multipliers of the split constraints; the bound itself is
computed by the ordinary backward pass with those multipliers as β, so that a solver's tolerance
never becomes part of a proof. The program's minimiser is returned for the other answer.
"""

from __future__ import annotations

from dataclasses import replace

import highspy
import numpy as np
import torch

from auto_LiRPA_patches.engine.backward import input_form
from auto_LiRPA_patches.engine.rows import BatchRows, NeuronRows
from auto_LiRPA_patches.engine.subproblems import Subproblems
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.pool import DomainBatch

# An infeasible leaf's certificate is a direction; scaled far enough, its bound exceeds any margin.
_RAY_SCALES = (1.0, 1e3, 1e6)


def decide_leaf(bounding: Bounding, leaf: DomainBatch) -> tuple[bool, np.ndarray]:
    """Try to exclude one leaf exactly.

    Args:
        bounding: the region's.
        leaf: one subproblem without open neurons.

    Returns:
        Whether it is excluded, and ``[n, num_inputs]`` inputs worth trying as counterexamples.
    """
    problem = bounding.subproblems(leaf, bounding.signs(leaf))
    points = []
    for row in range(problem.rows.shape[0]):
        solved = _solve(problem, row)
        if solved is None:
            continue
        multipliers, point = solved
        if _excluded(bounding, leaf, problem, row, multipliers):
            return True, np.zeros((0, 0))
        if point is not None:
            points.append(point)
    width = int(np.prod(problem.graph.input_shape))
    return False, np.stack(points) if points else np.zeros((0, width))


def _excluded(
    bounding: Bounding,
    leaf: DomainBatch,
    problem: Subproblems,
    row: int,
    multipliers: list[np.ndarray],
) -> bool:
    like = problem.rows
    for values in multipliers:
        table = like.new_zeros(like.shape[0], 1, bounding.features.total)
        places = leaf.splits[0].long().abs()
        used = places[places > 0] - 1
        table[row, 0, used.to(like.device)] = torch.from_numpy(values).to(like)
        tried = replace(problem, betas=bounding.features.split(table))
        with torch.no_grad():
            lower = tried.lower(tried.relaxations())
        if float(bounding.margin(leaf, lower)[0]) > 0:
            return True
    return False


def _solve(problem: Subproblems, row: int) -> tuple[list[np.ndarray], np.ndarray | None] | None:
    """Multipliers of the split constraints to try, and the minimiser where there is one."""
    cost, matrix, limits = _program(problem, row)
    lower = problem.box.lower.flatten().double().cpu().numpy()
    upper = problem.box.upper.flatten().double().cpu().numpy()
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("presolve", "off")  # so that infeasibility comes with a certificate
    solver.passModel(_model(cost, matrix, limits, lower, upper))
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        solution = solver.getSolution()
        return [np.maximum(np.array(solution.row_dual), 0.0)], np.array(solution.col_value)
    if status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = solver.getDualRay()
        if has_ray:
            direction = np.maximum(np.array(ray), 0.0)
            flipped = np.maximum(-np.array(ray), 0.0)
            return [scale * ray for ray in (direction, flipped) for scale in _RAY_SCALES], None
    return None


def _program(problem: Subproblems, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``min cost . x`` subject to ``matrix x >= limits``: one constraint per split, in order."""
    state = problem.relaxations()
    graph, box = problem.graph, problem.box

    def lines_at(index: int) -> object:
        return state.lines(index, problem.alphas)

    with torch.no_grad():
        rows = BatchRows(problem.rows[row : row + 1])
        coeffs, _ = input_form(graph, box, graph.output, rows, lines_at)
        cost = _flat(coeffs, box.lower.numel())[0]
        blocks, limits = [], []
        for activation, sign in problem.signs.items():
            chosen = sign[0].nonzero().squeeze(1)
            if not chosen.numel():
                continue
            source = graph.nodes[activation].inputs[0]
            index = problem.features.get(activation)
            elements = chosen if index is None else index[chosen]
            split = NeuronRows(elements, sign[0, chosen])
            coeffs, bias = input_form(graph, box, source, split, lambda i: state.lines(i, None))
            blocks.append(_flat(coeffs, box.lower.numel()))
            constant = np.zeros(len(elements))
            if bias is not None:
                constant = bias[:, 0].double().cpu().numpy()
            limits.append(-constant)
    if not blocks:
        return cost, np.zeros((0, cost.size)), np.zeros(0)
    return cost, np.concatenate(blocks), np.concatenate(limits)


def _flat(coeffs: torch.Tensor | None, width: int) -> np.ndarray:
    if coeffs is None:
        return np.zeros((1, width))
    return coeffs[:, 0].flatten(1).double().cpu().numpy()


def _model(
    cost: np.ndarray, matrix: np.ndarray, limits: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = cost.size, limits.size
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = limits, np.full(limits.size, highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    places = [np.flatnonzero(row) for row in matrix]
    model.a_matrix_.start_ = np.concatenate([[0], np.cumsum([len(p) for p in places])])
    model.a_matrix_.index_ = np.concatenate([*places, np.zeros(0, dtype=int)]).astype(np.int32)
    model.a_matrix_.value_ = np.concatenate(
        [*(row[p] for row, p in zip(matrix, places, strict=True)), np.zeros(0)]
    )
    return model
