"""What the attack minimises, against the clauses' own exact evaluation."""

from __future__ import annotations

import numpy as np
import torch

from complete_verifier.attack.objective import ClauseObjective
from complete_verifier.attack.settings import LossMode
from complete_verifier.specification import Clause

_SHORT = Clause(np.array([[1.0, -1.0, 0.0]]), np.array([0.5]))
_LONG = Clause(
    np.array([[0.0, 1.0, 0.0], [0.0, 0.0, -2.0]]), np.array([1.0, -1.0]), np.array([True, False])
)


def _outputs() -> torch.Tensor:
    return torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_satisfied_agrees_with_the_clauses_themselves() -> None:
    objective = ClauseObjective.of([_SHORT, _LONG])
    outputs = _outputs()
    satisfied = objective.satisfied(objective.margins(outputs))
    for index, clause in enumerate((_SHORT, _LONG)):
        expected = [clause.satisfied_by(y) for y in outputs[index].numpy()]
        assert satisfied[index].tolist() == expected
        assert 0 < sum(expected) < 50


def test_a_strict_row_does_not_hold_on_its_boundary_and_still_pulls() -> None:
    objective = ClauseObjective.of([_LONG])
    outputs = torch.tensor([[[0.0, 1.0, 5.0]]], dtype=torch.float64, requires_grad=True)
    margins = objective.margins(outputs)
    assert not bool(objective.satisfied(margins))
    objective.loss(margins, LossMode.HINGE).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 0, 1] > 0


def test_hinge_ignores_rows_that_hold_and_sum_does_not() -> None:
    objective = ClauseObjective.of([_LONG])
    outputs = torch.tensor([[[0.0, 3.0, 5.0]]], dtype=torch.float64)
    margins = objective.margins(outputs)  # rows 2.0 (scale 1) and -9.0 (scale 1/2)
    assert float(objective.loss(margins, LossMode.HINGE)) == 2.0
    assert float(objective.loss(margins, LossMode.SUM)) == 2.0 - 4.5


def test_padding_of_a_shorter_clause_changes_nothing() -> None:
    alone, beside = ClauseObjective.of([_SHORT]), ClauseObjective.of([_SHORT, _LONG])
    outputs = _outputs()
    for mode in LossMode:
        expected = alone.loss(alone.margins(outputs[:1]), mode)
        assert torch.equal(beside.loss(beside.margins(outputs), mode)[:1], expected)


def test_the_loss_does_not_depend_on_the_unit_a_row_is_stated_in() -> None:
    """Field case 12: rows times 1e4 (a power of two here, to compare bits)."""
    scaled = Clause(_LONG.coefficients * 2.0**13, _LONG.rhs * 2.0**13, _LONG.strict)
    one, other = ClauseObjective.of([_LONG]), ClauseObjective.of([scaled])
    outputs = _outputs()[:1]
    assert torch.equal(
        one.loss(one.margins(outputs), LossMode.HINGE),
        other.loss(other.margins(outputs), LossMode.HINGE),
    )


def test_a_clause_without_rows_always_holds() -> None:
    objective = ClauseObjective.of([Clause(np.zeros((0, 3)), np.zeros(0))])
    assert bool(objective.satisfied(objective.margins(_outputs()[:1])).all())
