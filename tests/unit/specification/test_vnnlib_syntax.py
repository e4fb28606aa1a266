"""What the VNN-LIB reader accepts and what it refuses, with the text of each refusal."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from complete_verifier.specification import Specification, SpecificationError, parse_vnnlib

HEAD = "(declare-const X_0 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)\n"
BOX = "(assert (and (<= -1 X_0 1)))\n"


def parse(text: str, head: str = HEAD + BOX) -> Specification:
    return parse_vnnlib(head + text, "f")


def unsafe(specification: Specification, *y: float) -> bool:
    return any(region.violated_by(np.array(y)) for region in specification.regions)


@pytest.mark.parametrize(
    ("formula", "inside", "outside"),
    [
        ("(<= (* 2 Y_0) 3)", (1.5, 0), (1.5001, 0)),
        ("(>= (* -2 Y_0) -3)", (1.5, 0), (1.5001, 0)),
        ("(< (* -0.3 Y_0) 0.9)", (-2.9999, 0), (-3, 0)),
        ("(<= (* 0 Y_0) Y_1)", (9, 0), (9, -0.1)),
        ("(<= (* 2 Y_0) Y_1)", (1, 2), (1, 1.9)),
        ("(<= 3 (* Y_0 2.0))", (1.5, 0), (1.4999, 0)),
        ("(>= (+ Y_0 Y_1 -1) 0)", (0.5, 0.5), (0.5, 0.4999)),
        ("(<= (- Y_0) -1)", (1, 0), (0.9999, 0)),
        ("(<= (- Y_0 Y_1 1) 0)", (2, 1), (2.0001, 1)),
        ("(= Y_0 0.5)", (0.5, 0), (0.5001, 0)),
        ("(= Y_0 Y_1)", (2, 2), (2, 2.0001)),
        ("(and (<= Y_0 1) (>= Y_0 1) (<= Y_1 0))", (1, 0), (1, 0.1)),
        ("(or (and (or (<= Y_0 0) (<= Y_1 0)) (>= Y_0 -1)) (<= Y_1 -9))", (-1, 5), (-2, 5)),
        ("(<= 0 Y_0 Y_1 1)", (0, 1), (0.5, 0.25)),
        ("(< (/ Y_0 4) 1e-1)", (0.3999, 0), (0.4, 0)),
        ("(>= (* 1e2 (+ Y_0 .5)) +50.)", (0, 0), (-0.001, 0)),
        ("(<= (* 2 (- Y_0 (* 3 Y_1))) (+ Y_0 4))", (4, 0), (4.001, 0)),
    ],
)
def test_formulas_mean_what_they_say(
    formula: str, inside: tuple[float, float], outside: tuple[float, float]
) -> None:
    specification = parse(f"(assert {formula})")
    assert unsafe(specification, *inside)
    assert not unsafe(specification, *outside)


def test_comments_version_1_commands_and_carriage_returns_are_skipped() -> None:
    text = (
        '; (assert (<= Y_0 -9))\r\n(set-info :source "a ) b")(set-logic QF_LRA)\r\n'
        "(assert ; here\r\n (<= Y_0 ; and here\r\n 0))\r\n(check-sat)(exit)"
    )
    specification = parse(text)
    assert unsafe(specification, 0, 0)
    assert not unsafe(specification, 1, 0)


@pytest.mark.parametrize(
    "head",
    [
        "(declare-fun X_0 () Real)(declare-fun Y_0 () Real)(assert (<= -1 X_0 1))",
        "(declare-const X0 Real)(declare-const y_0 Real)(assert (<= -1 X0 1))",
    ],
)
def test_other_spellings_of_declarations_are_read(head: str) -> None:
    output = "Y_0" if "Y_0" in head else "y_0"
    assert parse(f"(assert (<= {output} 0))", head).num_outputs == 1


def test_constant_formulas_are_decided() -> None:
    assert unsafe(parse("(assert (<= 0 1))(assert (<= (- Y_0 Y_0) 0))"), 3, 3)
    impossible = parse("(assert false)(assert (<= Y_0 0))")
    assert impossible.regions[0].clauses == ()
    assert not unsafe(impossible, -1, 0)
    some = parse("(assert (or (and (<= Y_0 0) (< 1 1)) (<= Y_1 0) (or false false)))")
    assert some.num_clauses == 1
    assert not unsafe(some, -1, 1)


def test_a_disjunct_without_outputs_makes_its_whole_box_unsafe() -> None:
    first, second = parse("(assert (or (<= X_0 0) (<= Y_0 0)))").regions
    assert first.upper[0] == 0
    assert first.violated_by(np.array([7.0, 7.0]))
    assert not second.violated_by(np.array([7.0, 7.0]))


def test_disjuncts_over_one_box_share_a_region() -> None:
    (region,) = parse("(assert (or (<= Y_0 0) (and (<= X_0 2) (<= Y_1 0))))").regions
    assert len(region.clauses) == 2
    narrowed = parse("(assert (or" + "(and (<= X_0 0.5) (<= Y_0 0))" * 2 + "(<= Y_1 0)))").regions
    assert [len(region.clauses) for region in narrowed] == [2, 1]


def test_a_bound_that_is_no_float64_is_kept_exactly() -> None:
    clause = parse("(assert (<= (- Y_0 Y_1) 0.1))").regions[0].clauses[0]
    assert clause.exact_rhs is not None
    assert Fraction(clause.exact_rhs[0]) == Fraction(1, 10)
    assert Fraction(float(clause.rhs[0])) > Fraction(1, 10)
    # float64(0.1) lies above the decimal 0.1: a superset for proofs, no counterexample.
    assert not clause.satisfied_by(np.array([0.1, 0.0]))
    assert clause.satisfied_by(np.array([np.nextafter(0.1, 0), 0.0]))


def test_coefficients_that_are_no_float64_are_scaled_to_exact_ones() -> None:
    clause = parse("(assert (<= (- (* 0.1 Y_0) (* 0.3 Y_1)) 0))").regions[0].clauses[0]
    assert clause.coefficients[0, 1] == -3 * clause.coefficients[0, 0]
    assert 0.05 <= clause.coefficients[0, 0] <= 0.2
    assert clause.satisfied_by(np.array([3.0, 1.0]))
    assert not clause.satisfied_by(np.array([np.nextafter(3.0, 4), 1.0]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(assert (<= Y_0 0)", r"f:3:19: expected '\)' after the asserted formula, got the end"),
        ("(assert (<= Y_0 0)))", r"f:3:20: expected '\(' at the start of a command, got '\)'"),
        ("(assert (<= Y_0 1.5.2))", "f:3:17: expected a constant or a declared variable, got '1.5"),
        ("(assert (<= (* 2 Y_9) 0))", r"f:3:18: expected .* got 'Y_9'"),
        ("(assert (<= (* 2 Y_0) Y_9))", r"f:3:23: expected .* got 'Y_9'"),
        ("(assert (<= (* 2 Y_0) 1e999))", "f:3:23: constant 1e999 is out of range"),
        ("(assert (<= (* 1e999 Y_0) 1))", "f:3:16: constant 1e999 is out of range"),
        ("(assert (<= Y_9 0))", r"f:3:13: expected .* got 'Y_9'; declare it first"),
        ("(assert (<= Y_0 nan))", "f:3:17: .*got 'nan'"),
        ("(assert (<= Y_0 1e999))", "f:3:17: constant 1e999 is out of range"),
        ("(assert (<= Y_0 1e-99999999999))", "out of range"),
        ("(assert (<= Y_0 " + "9" * 2000 + "))", "constant has 2000 characters"),
        ("(assert (not (<= Y_0 0)))", "f:3:10: expected 'and', 'or' or one of .*, got 'not'"),
        ("(assert (<= (* Y_0 Y_1) 0))", "f:3:13: this product of two variables is not linear"),
        ("(assert (<= (/ 1 Y_0) 0))", "'/' needs a constant divisor"),
        ("(assert (<= (/ Y_0 0) 0))", "'/' needs a constant divisor other than 0"),
        ("(assert (or))", "f:3:12: expected at least one formula after 'or', got none"),
        ("(assert Y_0)", "f:3:9: expected a formula in brackets, got 'Y_0'"),
        ("(assert " + "(and " * 300, "nested more than 200 deep"),
        ("(assert " + "(" * 5000, "nested more than 200 deep"),
        ("(assert (<= " + "(+ " * 5000, "nested more than 200 deep"),
        ("(define-fun f () Real 1)", "f:3:2: expected the command 'assert'"),
        ('(set-info "a', "double quotes never ends"),
        ("(declare-const Z Real)", "f:3:16: expected an input X_i or an output Y_i"),
        ("(declare-const X_1 Int)", "f:3:20: expected X_1 to be declared Real, got 'Int'"),
        ("(declare-const x0 Real)", "f:3:16: x0 is already declared, as X_0"),
        ("(declare-const Y_3 Real)(assert (<= Y_0 0))", "f:3:16: Y_3 is declared but Y_2 is not"),
        ("(assert (<= X_0 0.5))", "f: expected a constraint on the outputs, got none"),
        (
            "(assert (<= (+ (* 0.12345678901234567 Y_0) (* 0.98765432109876543 Y_1)) 0))",
            "f:3:9: these coefficients have more digits than float64",
        ),
        ("(assert (<= (* 1e-200 X_0) 1e200))", "the bound this constraint implies is beyond"),
        (
            "(assert (and" + "(or (<= Y_0 0) (<= Y_1 0))" * 20 + "))",
            "f: the disjunctions multiply to 1048576 clauses, at most 1000000",
        ),
    ],
)
def test_what_cannot_be_read_exactly_is_refused_with_a_place(text: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        parse(text)


def test_many_disjuncts_times_false_expand_to_nothing() -> None:
    text = "(assert (or (and" + "(or (<= Y_0 0) (<= Y_1 0))" * 60 + "(< 1 0)) (<= Y_0 -1)))"
    assert parse(text).num_clauses == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f:1:16: input X_0 has no lower bound in clause 1"),
        ("(assert (>= X_0 0))", "f:1:16: input X_0 has no upper bound in clause 1"),
        (
            "(assert (or (and (<= X_0 1) (>= X_0 0)) (and (>= X_0 0) (<= Y_1 0))))",
            "f:1:16: input X_0 has no upper bound in clause 2",
        ),
    ],
)
def test_an_unbounded_input_is_named(text: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        parse(text + "(assert (<= Y_0 0))", HEAD)


@pytest.mark.parametrize("text", ["(vnnlib-version <2.0>)\n", "; c\n (declare-network acc)"])
def test_version_2_is_refused_by_name(text: str) -> None:
    with pytest.raises(SpecificationError, match=r"f:\d:\d: this file is in VNN-LIB 2.0"):
        parse_vnnlib(text, "f")


@pytest.mark.parametrize(
    ("head", "message"), [("(declare-const Y_0 Real)", "X_0"), ("(declare-const X_0 Real)", "Y_0")]
)
def test_a_file_without_inputs_or_outputs_is_refused(head: str, message: str) -> None:
    with pytest.raises(SpecificationError, match=f"f: expected {message} to be declared"):
        parse_vnnlib(head, "f")
