"""Statements around an input become the box and the clauses they say.

A failure means that another question is answered than the one that was asked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from complete_verifier.specification import Robustness, Specification, SpecificationError
from complete_verifier.specification.robustness import Demand

X = np.array([[0.1, 0.5], [0.9, 0.3]])


def no_scores(_: np.ndarray) -> np.ndarray:
    raise AssertionError("this property does not depend on the network's scores")


def scores(point: np.ndarray) -> np.ndarray:
    assert point.dtype == np.float32
    return np.array([1.0, 5.0, 3.0, 4.0])


def test_the_box_is_cut_off_at_the_limits() -> None:
    statement = Specification.linf(X, 0.2, 1, lowest=0, highest=1)
    np.testing.assert_array_equal(statement.region.lower, [0.0, 0.3, 0.9 - 0.2, 0.3 - 0.2])
    np.testing.assert_array_equal(statement.region.upper, [0.1 + 0.2, 0.7, 1.0, 0.5])
    assert statement.shape == (2, 2)


def rows(statement: Robustness, num_outputs: int = 4) -> list[list[float]]:
    use = no_scores if statement.demand in ("verified-acc", "all-positive") else scores
    property_ = statement.for_network(num_outputs, use)
    (region,) = property_.regions
    assert all(clause.num_rows == 1 and clause.rhs[0] == 0 for clause in region.clauses)
    return [clause.coefficients[0].tolist() for clause in region.clauses]


@pytest.mark.parametrize(
    ("demand", "label", "expected"),
    [
        ("verified-acc", 2, [[-1, 0, 1, 0], [0, -1, 1, 0], [0, 0, 1, -1]]),
        ("runnerup", 2, [[0, -1, 1, 0]]),
        ("runnerup", 1, [[0, 1, 0, -1]]),
        ("clean-runnerup", 0, [[0, 1, 0, -1]]),
        ("all-positive", -1, np.eye(4).tolist()),
    ],
)
def test_what_is_unsafe(demand: Demand, label: int, expected: list[list[float]]) -> None:
    statement = replace(Specification.linf(X, 0.1, label), demand=demand)
    assert rows(statement) == expected


def test_only_the_named_targets_compete() -> None:
    assert rows(Specification.linf(X, 0.1, 0, targets=[3])) == [[1, 0, 0, -1]]


def test_an_equal_output_is_a_violation() -> None:
    property_ = Specification.linf(X, 0.1, 0).for_network(2, no_scores)
    (region,) = property_.regions
    assert region.violated_by(np.array([1.0, 1.0]))
    assert not region.violated_by(np.array([1.0, np.nextafter(1.0, 0)]))


def test_one_output_has_no_rival() -> None:
    with pytest.raises(SpecificationError, match="no class competes"):
        Specification.linf(X, 0.1, 0).for_network(1, no_scores)


def test_a_radius_per_coordinate() -> None:
    statement = Specification.linf(X, [0.1, 0.0, 0.2, 0.0], 0)
    np.testing.assert_array_equal(
        statement.region.upper - statement.region.lower > 0, [True, False, True, False]
    )


def test_an_offset_moves_every_bound_exactly() -> None:
    property_ = Specification.linf(X, 0.1, 0).for_network(2, no_scores)
    (region,) = property_.shifted(0.5).regions
    assert region.violated_by(np.array([1.0, 0.5]))
    assert not region.violated_by(np.array([1.0, np.nextafter(0.5, 0)]))
    (tighter,) = property_.shifted(-0.5).regions
    assert not tighter.violated_by(np.array([1.0, 1.0]))
    tenth = property_.shifted(0.1).regions[0].clauses[0]
    assert tenth.exact_rhs is not None and tenth.shifted(-0.1).satisfied_by(np.array([1.0, 1.0]))
