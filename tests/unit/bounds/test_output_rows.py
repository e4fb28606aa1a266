"""Which functionals are bounded, and what their bounds say about clauses.

A failure means that a correct bound is used for the wrong constraint, or the wrong way round.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from complete_verifier.bounds.output_rows import OutputRows, output_rows
from complete_verifier.specification import Clause


def clause(rows: list[list[float]], rhs: list[float], strict: list[bool] | None = None) -> Clause:
    flags = np.zeros(len(rhs), dtype=bool) if strict is None else np.array(strict)
    matrix = np.array(rows, dtype=np.float64).reshape(len(rhs), -1)
    return Clause(coefficients=matrix, rhs=np.array(rhs, dtype=np.float64), strict=flags)


def test_each_distinct_functional_appears_once_in_order() -> None:
    rows = output_rows(
        (
            clause([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0]),
            clause([[0.0, 1.0]], [5.0]),
            clause([[1.0, -1.0], [1.0, 0.0]], [2.0, 3.0]),
        ),
        num_outputs=2,
    )
    assert rows.exact.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]
    assert rows.row_of.tolist() == [0, 1, 1, 2, 0]
    assert rows.clause_of.tolist() == [0, 0, 1, 2, 2]
    assert rows.rhs.tolist() == [0.0, 1.0, 5.0, 2.0, 3.0]


def test_minus_zero_is_zero_but_nearly_equal_is_not_equal() -> None:
    near = np.nextafter(1.0, 2.0)
    rows = output_rows((clause([[1.0, 0.0], [1.0, -0.0], [near, 0.0]], [0.0, 1.0, 2.0]),), 2)
    assert rows.row_of.tolist() == [0, 0, 1]


def test_an_unsafe_set_without_clauses_has_no_rows() -> None:
    rows = output_rows((), num_outputs=3)
    assert rows.exact.shape == (0, 3)
    assert rows.num_clauses == 0
    assert rows.excluded(np.zeros(0)).shape == (0,)


def test_one_impossible_row_makes_a_conjunction_impossible() -> None:
    rows = output_rows((clause([[1.0], [-1.0]], [0.0, 5.0]),), 1)
    assert rows.excluded(np.array([0.1, -100.0])).tolist() == [True]
    assert rows.excluded(np.array([-0.1, 5.1])).tolist() == [True]
    assert rows.excluded(np.array([0.0, 5.0])).tolist() == [False]


def test_the_worst_margin_is_the_best_row_of_the_worst_clause() -> None:
    rows = output_rows((clause([[1.0], [-1.0]], [0.0, 5.0]), clause([[2.0]], [1.0])), 1)
    assert rows.worst_margin(np.array([0.5, -100.0, 9.0])) == 0.5
    assert rows.worst_margin(np.array([0.5, 7.0, 1.25])) == 0.25
    assert rows.worst_margin(np.array([0.5, np.nan, np.nan])) == -np.inf
    empty = output_rows((clause([[1.0]], [0.0]), Clause(np.zeros((0, 1)), np.zeros(0))), 1)
    assert empty.worst_margin(np.array([1.0])) == -np.inf


def test_every_clause_of_a_disjunction_must_be_excluded_on_its_own() -> None:
    rows = output_rows((clause([[1.0, 0.0]], [0.0]), clause([[0.0, 1.0]], [0.0])), 2)
    assert rows.excluded(np.array([1.0, -1.0])).tolist() == [True, False]
    assert rows.excluded(np.array([1.0, 1.0])).tolist() == [True, True]


def test_a_clause_without_rows_is_never_excluded() -> None:
    rows = output_rows((clause([[1.0, 0.0]], [0.0]), Clause(np.zeros((0, 2)), np.zeros(0))), 2)
    assert rows.num_clauses == 2
    assert rows.excluded(np.array([np.float64(1e9)])).tolist() == [True, False]


def test_a_strict_row_is_impossible_at_its_bound_a_closed_one_is_not() -> None:
    """No y has y < 2 where y >= 2; but y <= 2 holds at y = 2."""
    strict = output_rows((clause([[1.0]], [2.0], [True]),), 1)
    closed = output_rows((clause([[1.0]], [2.0], [False]),), 1)
    assert strict.excluded(np.array([2.0])).tolist() == [True]
    assert closed.excluded(np.array([2.0])).tolist() == [False]
    below, above = np.nextafter(2.0, 0.0), np.nextafter(2.0, 3.0)
    assert strict.excluded(np.array([below])).tolist() == [False]
    assert closed.excluded(np.array([above])).tolist() == [True]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("strict", [False, True])
def test_a_bound_that_is_not_finite_excludes_nothing(bad: float, strict: bool) -> None:
    rows = output_rows((clause([[1.0]], [2.0], [strict]),), 1)
    assert rows.excluded(np.array([bad])).tolist() == [False]


def test_the_threshold_is_demanded_on_top() -> None:
    rows = output_rows((clause([[1.0]], [2.0]),), 1)
    assert rows.excluded(np.array([2.4]), threshold=0.5).tolist() == [False]
    assert rows.excluded(np.array([2.6]), threshold=0.5).tolist() == [True]


def test_margins_come_per_constraint_in_the_order_of_the_clauses() -> None:
    rows = output_rows((clause([[1.0], [-1.0]], [1.0, 2.0]), clause([[1.0]], [5.0])), 1)
    assert rows.margins(np.array([4.0, -3.0])).tolist() == [3.0, -5.0, -1.0]


def test_only_rows_of_open_clauses_are_wanted() -> None:
    rows = output_rows(
        (clause([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), clause([[0.0, 1.0], [1.0, 1.0]], [0.0] * 2)),
        2,
    )
    assert rows.rows_of_open_clauses(np.array([True, False])).tolist() == [False, True, True]
    assert rows.rows_of_open_clauses(np.array([True, True])).tolist() == [False] * 3


def test_the_slack_covers_coefficients_that_are_no_float32() -> None:
    exact = [[0.1, 1.0, -(1.0 - 2.0**-30)]]
    rows = output_rows((clause(exact, [0.0]),), 3)
    largest = np.array([1e6, 1e9, 2.0**20])
    slack = rows.rounding(rows.matrix(torch.zeros(1, dtype=torch.float32)), largest)
    moved = abs(0.1 - float(np.float32(0.1))) * 1e6 + 2.0**-30 * 2.0**20
    np.testing.assert_allclose(slack, [moved], rtol=1e-12)
    assert rows.rounding(rows.matrix(torch.zeros(1, dtype=torch.float64)), largest).tolist() == [0]


def test_an_unbounded_output_voids_the_slack_only_where_a_coefficient_was_moved() -> None:
    rows = output_rows((clause([[0.5, 0.0], [0.1, 0.0]], [0.0, 0.0]),), 2)
    rounded = rows.matrix(torch.zeros(1, dtype=torch.float32))
    assert rows.rounding(rounded, np.array([np.inf, np.inf])).tolist() == [0.0, np.inf]
    assert np.isnan(rows.rounding(rounded, np.array([np.nan, 0.0]))).tolist() == [False, True]


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Clause], np.ndarray]:
    """Clauses with few distinct numbers, and outputs of one point."""
    numbers = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0])
    clauses = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 3))
        matrix = [[draw(numbers) for _ in range(2)] for _ in range(count)]
        rhs = [draw(numbers) for _ in range(count)]
        clauses.append(clause(matrix, rhs, [draw(st.booleans()) for _ in range(count)]))
    return clauses, np.array([draw(numbers), draw(numbers)])


def excluded_at(rows: OutputRows, y: np.ndarray) -> list[bool]:
    """Over a box that is one point, the exact lower bound of a functional is its value."""
    return rows.excluded(rows.exact @ y).tolist()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(problem=problems(), data=st.data())
def test_exact_bounds_exclude_exactly_the_clauses_that_do_not_hold(
    problem: tuple[list[Clause], np.ndarray], data: st.DataObject
) -> None:
    clauses, y = problem
    holds = [part.satisfied_by(y) for part in clauses]
    assert excluded_at(output_rows(tuple(clauses), 2), y) == [not held for held in holds]
    order = data.draw(st.permutations(range(len(clauses))))
    permuted = output_rows(tuple(clauses[i] for i in order), 2)
    assert excluded_at(permuted, y) == [not holds[i] for i in order]
