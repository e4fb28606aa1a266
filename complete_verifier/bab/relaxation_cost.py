"""What relaxing a neuron costs a bound, for activations of any shape."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.subproblems import Subproblems
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.lines import Lines
from complete_verifier.bab.features import FeatureSpan


def relaxation_cost(
    problem: Subproblems,
    state: Relaxations,
    span: FeatureSpan,
    row: tuple[Tensor, Tensor],
    coeffs: Tensor,
    values: Mapping[int, Tensor],
) -> Tensor:
    """The gap of each feature where the bound is attained, ``[B, F]``, >= 0.

    With a the coefficient of the activation's output in the bound and z the feature's value there,
    ``|a|`` times the distance between f(z) and the line that a's sign takes.

    Args:
        problem: B subproblems.
        state: their relaxations.
        span: the activation's features.
        row: indices (row, subproblem), ``[B]`` each: the functional that is looked at.
        coeffs: ``[B, N]``, a.
        values: per activation ``[B, F]``, z.
    """
    lines = state.lines(span.activation, problem.alphas)
    operator = problem.graph.nodes[span.activation].operator
    if not isinstance(lines, Lines) or not isinstance(operator, Activation):
        raise TypeError("an activation's lines were expected")
    own = span.of(coeffs)
    bounds = problem.bounds[span.source].flatten()
    value = values[span.activation].clamp(span.of(bounds.lower), span.of(bounds.upper))
    image = operator.function(value)
    below = image - _at(lines.lower_slope, lines.lower_intercept, row, value)
    above = _at(lines.upper_slope, lines.upper_intercept, row, value) - image
    cost = own.clamp(min=0) * below - own.clamp(max=0) * above
    return cost.detach().clamp(min=0).nan_to_num(nan=0.0)


def _at(
    slope: Tensor, intercept: Tensor | None, row: tuple[Tensor, Tensor], value: Tensor
) -> Tensor:
    """One line per feature, at ``value [B, F]``."""
    rise = _row(slope, row) * value
    return rise if intercept is None else rise + _row(intercept, row)


def _row(table: Tensor, row: tuple[Tensor, Tensor]) -> Tensor:
    """``[s, B, F]``, s = 1 or S, at each subproblem's row: ``[B, F]``."""
    return table[0] if table.shape[0] == 1 else table[row]
