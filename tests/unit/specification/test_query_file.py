"""VNN-LIB 2.0 queries: the same boxes and clauses as in 1.0, and what is refused by name.

A failure means that a query of the standard is answered for another question.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from complete_verifier.specification import SpecificationError, parse_vnnlib
from complete_verifier.specification.query_file import parse_query

pytest.importorskip("vnnlib")

HEAD = """(vnnlib-version <2.0>)
(declare-network N
    (declare-input X {kind} [1,2])
    (declare-output Y {kind} [2])
)
"""
BOX = "(assert (and (>= X[0,0] 0.1) (<= X[0,0] 0.3) (>= X[0,1] -1.0) (<= X[0,1] 1.0)))\n"


def query(asserts: str, kind: str = "float32"):
    return parse_query(HEAD.format(kind=kind) + BOX + asserts, "q.vnnlib")


def test_a_query_says_what_the_same_file_says_in_version_1() -> None:
    new = query(
        "(assert (or (<= Y[0] (- Y[1] 0.1)) (and (> (* 2.5 Y[0]) 1.5) (< X[0,1] 0.0))))"
        "(assert (>= (+ Y[0] Y[1] 0.25) (- 0.5)))"
    ).specification
    old = parse_vnnlib(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(declare-const Y_1 Real)"
        "(assert (>= X_0 0.1))(assert (<= X_0 0.3))(assert (>= X_1 -1.0))(assert (<= X_1 1.0))"
        "(assert (or (<= Y_0 (- Y_1 0.1)) (and (> (* 2.5 Y_0) 1.5) (< X_1 0.0))))"
        "(assert (>= (+ Y_0 Y_1 0.25) (- 0.5)))",
        "old",
    )
    assert len(new.regions) == len(old.regions) == 2
    for ours, theirs in zip(new.regions, old.regions, strict=True):
        np.testing.assert_array_equal(ours.lower, theirs.lower)
        np.testing.assert_array_equal(ours.upper, theirs.upper)
        np.testing.assert_array_equal(ours.upper_open, theirs.upper_open)
        for a, b in zip(ours.clauses, theirs.clauses, strict=True):
            np.testing.assert_array_equal(a.coefficients, b.coefficients)
            np.testing.assert_array_equal(a.rhs, b.rhs)
            assert a.exact_rhs == b.exact_rhs
            np.testing.assert_array_equal(a.strict, b.strict)


def test_numbers_are_taken_from_their_digits() -> None:
    (region,) = query("(assert (<= Y[0] 0.1))").specification.regions
    exact = region.clauses[0].exact_rhs
    assert exact is not None and Fraction(exact[0]) == Fraction(1, 10)
    assert region.lower_open[0]  # 0.1 itself is no float64


def test_not_equal_is_either_side() -> None:
    specification = query("(assert (!= Y[0] 1.0))").specification
    (region,) = specification.regions
    assert not region.violated_by(np.array([1.0, 0.0]))
    assert region.violated_by(np.array([0.5, 0.0])) and region.violated_by(np.array([2.0, 0.0]))


def test_equality_holds_on_both_sides() -> None:
    (region,) = query("(assert (== Y[0] 1.0))").specification.regions
    assert region.violated_by(np.array([1.0, 5.0]))
    assert not region.violated_by(np.array([np.nextafter(1.0, 2), 5.0]))


def test_a_query_without_output_constraints_is_satisfied_by_any_member() -> None:
    found = query("(assert (<= X[0,0] 0.2))")
    (region,) = found.specification.regions
    assert region.violated_by(np.array([3.0, 4.0]))
    assert found.network == "N"
    assert (found.inputs[0].shape, found.outputs[0].shape) == ((1, 2), (2,))


REFUSED = {
    "(assert (<= (* Y[0] Y[1]) 1.0))": "multiplies variables; only linear constraints",
    "(assert (<= X[0,0] X[0,1]))": "relates inputs",
    "(assert (<= X[0,0] Y[1]))": "relates input",
    "(assert (<= Z[0] 1.0))": r"q.vnnlib:7: Undeclared variable \(Z\)",
    "(assert (<= Y[2] 1.0))": "Index out of bounds",
    "(assert (<= Y[0]": "syntax error",
}


@pytest.mark.parametrize("asserts", REFUSED)
def test_what_cannot_be_stated_is_refused(asserts: str) -> None:
    with pytest.raises(SpecificationError, match=REFUSED[asserts]):
        query(asserts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(declare-network A (declare-input X real [1]) (declare-output Y real [1]))"
            "(declare-network B (declare-input U real [1]) (declare-output V real [1]))",
            "it declares 2 networks",
        ),
        (
            "(declare-network A (declare-input X real [1]) (declare-hidden H real [1] "
            '"h")(declare-output Y real [1]))',
            "declares the hidden node H",
        ),
        (
            "(declare-network A (declare-input X float64 [1]) (declare-output Y float64 [1]))",
            "X is declared with an element type that is not supported",
        ),
    ],
)
def test_networks_of_other_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        parse_query(f"(vnnlib-version <2.0>){text}(assert (<= Y[0] 1.0))", "q")


def test_inputs_without_bounds_get_a_window_beyond_every_bound_stated() -> None:
    text = HEAD.format(kind="real") + "(assert (or (<= X[0,0] -70.5) (and (>= X[0,1] 3.0) {})))"
    half_open, closed = parse_query(
        text.format("(<= X[0,1] 4.0) (>= X[0,0] 0.0) (<= X[0,0] 1.0) (<= Y[0] 0.0)"), "q"
    ).specification.regions
    assert half_open.windowed and not closed.windowed
    assert not half_open.is_empty and half_open.lower[0] <= -141 and half_open.upper[0] == -70.5
    np.testing.assert_array_equal(closed.lower, [0.0, 3.0])
    (nothing_stated,) = parse_query(
        HEAD.format(kind="real") + "(assert (<= Y[0] 0.0))", "q"
    ).specification.regions
    assert nothing_stated.windowed and (nothing_stated.lower < nothing_stated.upper).all()
    (huge,) = parse_query(
        HEAD.format(kind="real") + f"(assert (<= X[0,0] -{9 * 10**307}.0))", "q"
    ).specification.regions
    assert huge.windowed and not huge.is_empty and np.isfinite(huge.lower).all()
