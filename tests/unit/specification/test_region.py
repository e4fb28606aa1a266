"""Boxes and clauses against exact rational arithmetic.

A failure means that a counterexample outside the stated set could be reported, or that a proof
could leave out a part of it.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from complete_verifier.specification import (
    Clause,
    Region,
    Specification,
    SpecificationError,
    group_regions,
    parse_vnnlib,
)

DECIMALS = st.one_of(
    st.decimals(-2, 2, places=3).map(str),
    st.decimals(-2, 2, places=20).map(str),
    st.floats(-2, 2, width=32).map(repr).filter(lambda text: "e" not in text),
    # Next to float32 midpoints, where rounding twice would go wrong.
    st.sampled_from(
        [
            "1.000000059604644775390625",
            "1.000000059604644775390625000001",
            "1.000000059604644775390624999999",
            "0.1",
        ]
    ),
)


def region_between(lower: str, upper: str, strict: bool) -> Region:
    greater, less = (">", "<") if strict else (">=", "<=")
    text = (
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= Y_0 0))"
        f"(assert ({greater} X_0 {lower}))(assert ({less} X_0 {upper}))"
    )
    return parse_vnnlib(text, "box").regions[0]


def float32_near(text: str) -> list[np.float32]:
    """Five float32 around a decimal."""
    centre = np.float32(float(text))
    points = [centre]
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        point = centre
        for _ in range(2):
            point = np.nextafter(point, direction)
            points.append(point)
    return points


def round_to_float32(value: Fraction) -> np.float32:
    """Round to nearest, ties to even, in one step."""
    candidates = float32_near(str(float(value)))
    distance = {float(c): abs(Fraction(float(c)) - value) for c in candidates}
    best = min(distance.values())
    nearest = [np.float32(c) for c, d in distance.items() if d == best]
    return next((c for c in nearest if int(c.view(np.int32)) % 2 == 0), nearest[0])


@given(lower=DECIMALS, upper=DECIMALS, strict=st.booleans())
def test_float32_membership_matches_the_decimals(lower: str, upper: str, strict: bool) -> None:
    region = region_between(lower, upper, strict)
    low, high = Fraction(lower), Fraction(upper)
    assert region.is_empty == (low > high or (low == high and strict))
    outer, inner = region.float32_outer_box(), region.float32_inner_box()
    if not region.is_empty:
        assert Fraction(float(outer.lower[0])) <= low
        assert Fraction(float(outer.upper[0])) >= high
        assert Fraction(float(region.lower[0])) <= low
        assert Fraction(float(region.upper[0])) >= high
        # Tight: one step inward would cut the box.
        inward = np.nextafter(outer.lower[0], np.float32(np.inf))
        assert Fraction(float(inward)) > low
    for point in float32_near(lower) + float32_near(upper):
        exact = Fraction(float(point))
        inside = low < exact < high if strict else low <= exact <= high
        assert region.contains_float32(np.array([point])) == inside
        assert bool(inner.lower[0] <= point <= inner.upper[0]) == inside


@given(lower=DECIMALS, upper=DECIMALS)
def test_the_image_box_is_what_the_members_round_to(lower: str, upper: str) -> None:
    low, high = sorted((Fraction(lower), Fraction(upper)))
    texts = (lower, upper) if Fraction(lower) <= Fraction(upper) else (upper, lower)
    image = region_between(*texts, False).float32_image_box()
    assert image.lower[0] == round_to_float32(low)
    assert image.upper[0] == round_to_float32(high)


def test_the_image_box_of_open_sides_leaves_a_midpoint_inwards() -> None:
    midpoint = "1.000000059604644775390625"  # between 1 and 1 + 2^-23; ties go to 1
    closed, opened = (region_between(midpoint, "1.5", strict) for strict in (False, True))
    assert closed.float32_image_box().lower[0] == 1
    assert opened.float32_image_box().lower[0] == np.nextafter(np.float32(1), np.float32(2))


def test_field_case_6_a_candidate_outside_a_narrow_box_is_rejected() -> None:
    region = region_between("0.0082597", "0.0082603", False)
    assert region.contains_float32(np.array([0.00826], dtype=np.float32))
    assert not region.contains_float32(np.array([0.00832], dtype=np.float32))
    just_above = np.nextafter(region.float32_inner_box().upper, np.float32(1))
    assert not region.contains_float32(just_above)


def test_a_coordinate_without_any_float32_is_reported() -> None:
    region = Region(np.array([0.0, 0.1]), np.array([1.0, 0.1]), ())
    np.testing.assert_array_equal(region.float32_inner_box().empty_inputs, [1])
    assert not region.is_empty
    assert region.float32_outer_box().empty_inputs.size == 0


def test_boxes_beyond_float32_stay_sound() -> None:
    region = Region(np.array([-1e300, 1e300]), np.array([1e-300, 1e300]), ())
    outer, inner = region.float32_outer_box(), region.float32_inner_box()
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(inner.lower[0], -largest)
    assert inner.upper[0] == 0
    assert outer.lower[0] == -np.inf
    assert outer.upper[0] == np.finfo(np.float32).smallest_subnormal
    assert (outer.lower[1], outer.upper[1]) == (largest, np.inf)
    np.testing.assert_array_equal(inner.empty_inputs, [1])


FLOATS = st.floats(-1e3, 1e3, width=32)


@given(
    coefficients=st.lists(
        st.sampled_from([-3.0, -1.0, 0.0, 1e-20, 1.0, 2.5]), min_size=3, max_size=3
    ),
    outputs=st.lists(FLOATS, min_size=3, max_size=3),
    offset=st.sampled_from([0.0, 2.0**-60, -(2.0**-60), 1.0]),
    strict=st.booleans(),
)
def test_clause_evaluation_is_exact_at_equality(
    coefficients: list[float], outputs: list[float], offset: float, strict: bool
) -> None:
    value = sum(Fraction(c) * Fraction(y) for c, y in zip(coefficients, outputs, strict=True))
    rhs = float(value) + offset
    clause = Clause(np.array([coefficients]), np.array([rhs]), np.array([strict]))
    expected = value < Fraction(rhs) if strict else value <= Fraction(rhs)
    assert clause.satisfied_by(np.array(outputs, dtype=np.float32)) == expected


def test_cancellation_beyond_float64_is_seen() -> None:
    y = np.array([1e30, 1e-30, -1e30], dtype=np.float32)
    clause = Clause(np.ones((1, 3)), np.zeros(1))
    assert not clause.satisfied_by(y)
    assert clause.satisfied_by(-y)
    huge = Clause(np.array([[1e308, -1e308, 0.0]]), np.zeros(1))
    assert huge.satisfied_by(np.array([2.0, 2.0, 0.0]))
    assert not huge.satisfied_by(np.array([2.0, 1.0, 0.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_output_satisfies_nothing(bad: float) -> None:
    region = Region(
        np.zeros(1),
        np.ones(1),
        (Clause(np.zeros((0, 2)), np.zeros(0)), Clause(-np.eye(2), np.zeros(2))),
    )
    assert region.violated_by(np.array([1.0, 1.0]))
    assert not region.violated_by(np.array([bad, 1.0]))
    np.testing.assert_array_equal(region.margins(np.array([[bad, 1.0]])), [np.inf])


def test_margins_are_min_over_clauses_of_max_over_rows() -> None:
    clauses = (
        Clause(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0])),
        Clause(np.array([[-1.0, 1.0]]), np.array([-4.0])),
    )
    region = Region(np.zeros(1), np.ones(1), clauses)
    y = np.array([[3.0, 1.0], [0.0, -2.0], [9.0, 0.0]])
    np.testing.assert_array_equal(region.margins(y), [2.0, -1.0, -5.0])
    assert region.margins(y[0]) == 2.0
    np.testing.assert_array_equal(Region(np.zeros(1), np.ones(1), ()).margins(y), [np.inf] * 3)


def test_group_regions_merges_equal_boxes_in_order() -> None:
    clauses = [Clause(np.ones((1, 1)), np.full(1, float(i))) for i in range(3)]
    wide, narrow = (np.zeros(1), np.ones(1)), (np.zeros(1), np.full(1, 0.5))
    open_flag = np.ones(1, dtype=bool)
    grouped = group_regions(
        [
            Region(*wide, (clauses[0],)),
            Region(*narrow, (clauses[1],)),
            Region(*wide, (clauses[2],)),
            Region(*wide, (clauses[2],), upper_open=open_flag),
        ]
    )
    assert [region.clauses for region in grouped] == [
        (clauses[0], clauses[2]),
        (clauses[1],),
        (clauses[2],),
    ]


def test_arrays_are_read_only_copies() -> None:
    lower = np.zeros(2)
    region = Region(lower, np.ones(2), ())
    lower[0] = 5
    assert region.lower[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        region.lower[0] = 1


ONE = Clause(np.ones((1, 2)), np.ones(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clause(np.ones(2), np.ones(1)), r"got \[2\] and \[1\]"),
        (lambda: Clause(np.ones((1, 2)), np.array([np.nan])), "must be finite"),
        (lambda: Clause(np.ones((1, 2)), np.ones(1), np.ones(3, bool)), r"strict: expected \[1\]"),
        (lambda: Clause(np.ones((1, 2)), np.ones(1), exact_rhs=()), "expected 1 exact bounds"),
        (
            lambda: Clause(np.ones((1, 2)), np.ones(1), exact_rhs=(Fraction(2),)),
            "lies below its exact bound 2",
        ),
        (lambda: Region(np.zeros(2), np.ones(3), ()), r"got \[2\] and \[3\]"),
        (lambda: Region(np.zeros(1), np.full(1, np.inf), ()), "must be finite"),
        (lambda: Region(np.zeros(2), np.ones(2), (), np.ones(3, bool)), r"lower_open: expected"),
        (
            lambda: Region(np.zeros(1), np.ones(1), (ONE, Clause(np.ones((1, 3)), np.ones(1)))),
            r"disagree about the number of outputs: \[2, 3\]",
        ),
        (lambda: Specification((), "s", 1, 2), "s: expected at least one region"),
        (lambda: Specification((Region(np.zeros(2), np.ones(2), ()),), "s", 1, 2), "over 1 inputs"),
        (
            lambda: Specification((Region(np.zeros(1), np.ones(1), (ONE,)),), "s", 1, 3),
            "over 3 outputs, got one over 2",
        ),
        (lambda: ONE.satisfied_by(np.ones(3)), "expected 2 outputs, got 3"),
        (
            lambda: Region(np.zeros(1), np.ones(1), ()).contains_float32(np.ones(2)),
            "expected 1 inputs, got 2",
        ),
    ],
)
def test_malformed_parts_are_refused(make: object, message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        make()  # type: ignore[operator]
