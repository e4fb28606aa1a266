"""The VNN-LIB problems users of verifiers meet, each as a small file.

A failure here means that the verifier answers another question than the file asks.
"""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from complete_verifier.specification import (
    Specification,
    SpecificationError,
    parse_vnnlib,
    read_vnnlib,
)

DECLARATIONS = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
"""
UNIT_BOX = (
    "(assert (>= X_0 0))(assert (<= X_0 1))(assert (>= X_1 0))(assert (<= X_1 1))(assert true)\n"
)


def parse(text: str, bounds: str = UNIT_BOX) -> Specification:
    return parse_vnnlib(DECLARATIONS + bounds + text, "case.vnnlib")


def violated(specification: Specification, x: tuple[float, ...], y: tuple[float, ...]) -> bool:
    point = np.array(x, dtype=np.float32)
    outputs = np.array(y, dtype=np.float32)
    return any(
        region.contains_float32(point) and region.violated_by(outputs)
        for region in specification.regions
    )


@pytest.mark.parametrize("order", [0, 1])
def test_case_13_a_constraint_beside_a_disjunction_holds_in_every_disjunct(order: int) -> None:
    asserts = ["(assert (or (<= Y_0 0) (>= Y_0 10)))", "(assert (<= Y_1 0))"]
    specification = parse("".join(asserts[:: 1 if order == 0 else -1]))
    assert specification.num_clauses == 2
    for y0, y1 in itertools.product((-1.0, 5.0, 11.0), (-1.0, 1.0)):
        expected = (y0 <= 0 or y0 >= 10) and y1 <= 0
        assert violated(specification, (0.5, 0.5), (y0, y1)) == expected


def test_case_13_two_disjunctions_multiply() -> None:
    specification = parse(
        "(assert (or (<= Y_0 0) (>= Y_0 10)))(assert (or (<= Y_1 0) (>= Y_1 10)))"
    )
    assert specification.num_clauses == 4
    for y0, y1 in itertools.product((-1.0, 5.0, 11.0), repeat=2):
        expected = (y0 <= 0 or y0 >= 10) and (y1 <= 0 or y1 >= 10)
        assert violated(specification, (0.5, 0.5), (y0, y1)) == expected


def test_case_14_strict_bounds_keep_the_inside_and_exclude_the_boundary() -> None:
    bounds = "(assert (> X_0 0.25))(assert (< X_0 0.75))(assert (>= X_1 0))(assert (<= X_1 1))"
    region = parse("(assert (<= Y_0 0))", bounds).regions[0]
    for x0, inside in ((0.25, False), (0.5, True), (0.75, False), (0.2, False), (0.8, False)):
        assert region.contains_float32(np.array([x0, 0.5], dtype=np.float32)) == inside
    outer, inner = region.float32_outer_box(), region.float32_inner_box()
    assert (outer.lower[0], outer.upper[0]) == (0.25, 0.75)
    assert inner.lower[0] == np.nextafter(np.float32(0.25), np.float32(1))
    assert inner.upper[0] == np.nextafter(np.float32(0.75), np.float32(0))


def test_case_14_strict_output_rows_exclude_equality() -> None:
    specification = parse("(assert (< Y_0 0.5))(assert (> Y_1 Y_0))")
    assert violated(specification, (0, 0), (0.25, 0.5))
    assert not violated(specification, (0, 0), (0.5, 0.75))
    assert not violated(specification, (0, 0), (0.25, 0.25))


def test_case_15_each_disjunct_narrows_the_global_box_afresh() -> None:
    specification = parse(
        "(assert (or (and (<= X_0 0.25) (<= Y_0 0)) (and (>= X_1 0.5) (<= Y_0 1))))"
    )
    first, second = specification.regions
    np.testing.assert_array_equal([first.lower, first.upper], [[0, 0], [0.25, 1]])
    np.testing.assert_array_equal([second.lower, second.upper], [[0, 0.5], [1, 1]])
    assert violated(specification, (0.75, 0.75), (0.5, 0))
    assert not violated(specification, (0.75, 0.25), (0.5, 0))


def test_case_15_a_disjunct_cannot_widen_the_global_box() -> None:
    specification = parse("(assert (or (and (<= X_0 7) (<= Y_0 0)) (<= Y_0 -1)))")
    (region,) = specification.regions
    assert region.upper[0] == 1
    assert len(region.clauses) == 2


def test_case_16_a_tautology_is_violated_everywhere() -> None:
    specification = parse("(assert (or (and (<= Y_0 0)) (and (>= Y_0 0))))")
    for y0 in (-1.0, 0.0, 1.0):
        assert violated(specification, (0.5, 0.5), (y0, 0))


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("(assert (<= Y_0))", 6, 16),
        ("(assert (or (and (<= Y_0 0))\n  (and (>= Y_0))))", 7, 15),
        ("(assert (>= (* Y_0) 1))", 6, 19),
        ("(assert (<= Y_0 (+ )))", 6, 20),
        ("(assert (<= ))", 6, 13),
    ],
)
def test_case_16_a_missing_constant_is_an_error_with_line_and_column(
    text: str, line: int, column: int
) -> None:
    with pytest.raises(SpecificationError, match=f"^case.vnnlib:{line}:{column}: .*is missing"):
        parse(text)


def test_case_17_extra_brackets_around_a_formula_and_a_term_are_read() -> None:
    specification = parse("(assert ((<= Y_0 1)))(assert (or (((<= (Y_0) ((+ Y_1 (2))))))))")
    assert violated(specification, (0, 0), (1, 0))
    assert not violated(specification, (0, 0), (2, 5))
    assert not violated(specification, (0, 0), (1, -2))


def test_case_17_brackets_around_two_formulas_are_refused() -> None:
    with pytest.raises(SpecificationError, match=r"6:21: expected '\)' to close the extra bracket"):
        parse("(assert ((<= Y_0 1) (<= Y_1 1)))")


def test_case_17_one_long_line_reads_like_many_lines() -> None:
    disjuncts = " ".join(f"(and (>= Y_0 {i}) (<= Y_0 {i}.5))" for i in range(3000))
    specification = parse_vnnlib(
        (DECLARATIONS + UNIT_BOX + f"(assert (or {disjuncts}))").replace("\n", " "), "long"
    )
    assert specification.num_clauses == 3000
    assert violated(specification, (0, 0), (2999.25, 0))
    assert not violated(specification, (0, 0), (2999.75, 0))


def test_case_17_a_gz_sibling_is_read_for_an_absent_file(tmp_path: Path) -> None:
    text = DECLARATIONS + UNIT_BOX + "(assert (<= Y_0 0))"
    (tmp_path / "p.vnnlib.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("p.vnnlib", "p.vnnlib.gz"):
        assert read_vnnlib(tmp_path / name).num_clauses == 1
    with pytest.raises(SpecificationError, match=r"q.vnnlib: expected this file or q.vnnlib.gz"):
        read_vnnlib(tmp_path / "q.vnnlib")


def test_case_17_a_truncated_gz_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.vnnlib.gz"
    path.write_bytes(gzip.compress(b"(assert true)" * 100)[:-10])
    with pytest.raises(SpecificationError, match="no complete gzip file"):
        read_vnnlib(path)


def test_case_18_a_coefficient_on_an_input_divides_the_bound_soundly() -> None:
    bounds = (
        "(assert (>= (* 60261.0 X_0) 36156.6))(assert (<= X_0 1))"
        "(assert (<= (* -3 X_1) 1))(assert (<= 0.5 (- 1 X_1)))"
    )
    region = parse("(assert (<= Y_0 0))", bounds).regions[0]
    np.testing.assert_allclose(region.lower, [36156.6 / 60261.0, -1 / 3], rtol=1e-15)
    assert region.upper[1] == 0.5
    # 36156.6 / 60261 is 0.6 exactly, which lies between two float32.
    below = np.float32(0.6)
    below = below if float(below) < 0.6 else np.nextafter(below, np.float32(0))
    assert region.float32_outer_box().lower[0] == below
    assert region.float32_inner_box().lower[0] == np.nextafter(below, np.float32(1))


def test_case_18_a_relation_between_inputs_is_refused() -> None:
    with pytest.raises(SpecificationError, match="6:9: this constraint relates inputs X_0 and X_1"):
        parse("(assert (<= X_0 X_1))(assert (<= Y_0 0))")


def test_case_18_a_relation_between_input_and_output_is_refused() -> None:
    with pytest.raises(SpecificationError, match="relates input X_1 to output Y_0"):
        parse("(assert (<= Y_0 (+ X_1 1)))")


def test_case_19_an_empty_input_set_is_read_and_flagged() -> None:
    bounds = "(assert (>= X_0 1))(assert (<= X_0 0))(assert (>= X_1 0))(assert (<= X_1 1))"
    specification = parse("(assert (<= Y_0 0))", bounds)
    assert specification.is_empty
    np.testing.assert_array_equal(specification.regions[0].empty_inputs, [0])
    assert not parse("(assert (<= Y_0 0))").is_empty


@pytest.mark.parametrize(
    ("lower", "upper", "empty"),
    [
        (">= X_0 0.1", "<= X_0 0.1", False),
        (">= X_0 0.10000000000000000000002", "<= X_0 0.10000000000000000000001", True),
        (">= X_0 0.10000000000000000000001", "<= X_0 0.10000000000000000000002", False),
        ("> X_0 0.1", "<= X_0 0.1", True),
        ("> X_0 0.5", "<= X_0 0.5", True),
        (">= X_0 0.5", "< X_0 0.5", True),
        ("> X_0 0.5", "< X_0 0.50000000000000000000001", False),
    ],
)
def test_case_19_emptiness_is_decided_on_the_decimals(lower: str, upper: str, empty: bool) -> None:
    bounds = f"(assert ({lower}))(assert ({upper}))(assert (>= X_1 0))(assert (<= X_1 1))"
    assert parse("(assert (<= Y_0 0))", bounds).is_empty == empty
