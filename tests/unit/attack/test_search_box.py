"""Which float32 inputs stand for members of a box. A failure would let a false `sat` through."""

from __future__ import annotations

import numpy as np
import pytest

from complete_verifier.attack.box import SearchBox
from complete_verifier.specification import Region


def _box(lower: float, upper: float, **flags: object) -> SearchBox | None:
    return SearchBox.of(Region(np.array([lower]), np.array([upper]), (), **flags))


def test_limits_are_the_float32_numbers_inside() -> None:
    box = _box(0.1, 0.3)
    assert box is not None
    assert np.float64(box.lower[0]) >= 0.1 and np.float64(box.upper[0]) <= 0.3
    assert np.float64(np.nextafter(box.lower[0], np.float32(0))) < 0.1
    assert np.float64(np.nextafter(box.upper[0], np.float32(1))) > 0.3
    assert not box.rounded.any()


def test_an_open_side_that_is_a_float32_is_left_out() -> None:
    box = _box(0.25, 0.5, lower_open=np.array([True]))
    assert box is not None
    assert not box.holds(np.float32([0.25]))
    assert box.holds(np.nextafter(np.float32([0.25]), np.float32(1)))
    assert box.holds(np.float32([0.5]))


def test_a_candidate_just_outside_a_narrow_box_is_rejected() -> None:
    """Field case 6: a box 6e-7 wide around 0.00826, a candidate at 0.00832."""
    box = _box(0.00826 - 3e-7, 0.00826 + 3e-7)
    assert box is not None
    assert box.holds(np.float32([0.00826]))
    assert not box.holds(np.float32([0.00832]))


def test_a_decimal_no_float32_meets_allows_only_its_rounding() -> None:
    box = _box(0.1, 0.1)
    assert box is not None and box.rounded.all()
    assert box.holds(np.float32([0.1]))
    assert not box.holds(np.nextafter(np.float32([0.1]), np.float32(1)))
    assert not box.holds(np.nextafter(np.float32([0.1]), np.float32(0)))


def test_a_point_that_is_a_float32_is_not_rounded() -> None:
    box = _box(0.5, 0.5)
    assert box is not None
    assert box.holds(np.float32([0.5])) and not box.rounded.any()


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_outside(x: float) -> None:
    box = _box(-1.0, 1.0)
    assert box is not None
    assert not box.holds(np.float32([x]))


def test_an_empty_box_has_nothing_to_search() -> None:
    assert _box(1.0, 0.0) is None
    assert _box(1.0, 1.0, upper_open=np.array([True])) is None


def test_a_float64_candidate_is_refused() -> None:
    box = _box(0.0, 1.0)
    assert box is not None
    with pytest.raises(ValueError, match=r"expected float32 \[1\], got float64 \[1\]"):
        box.holds(np.array([0.5]))
