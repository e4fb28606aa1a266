"""Balls of norm 1 and 2: who is a member, exactly; and what a box around one must hold.

A failure means that a counterexample outside the stated set passes, or one inside is refused.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from complete_verifier.attack.box import SearchBox
from complete_verifier.specification import Region, SpecificationError
from complete_verifier.specification.ball import Ball
from complete_verifier.specification.robustness import lp_region


def exactly_inside(ball: Ball, point: np.ndarray) -> bool:
    numbers = zip(ball.weights.tolist(), point.tolist(), ball.center.tolist(), strict=True)
    size = sum(
        abs(Fraction(w) * (Fraction(v) - Fraction(c))) ** int(ball.norm) for w, v, c in numbers
    )
    return size <= Fraction(ball.radius) ** int(ball.norm)


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_membership_is_exact_at_the_surface(norm: float) -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        center, weights = rng.normal(size=5), rng.uniform(0.1, 4, size=5)
        ball = Ball(center, 0.7, norm, weights)
        offset = rng.normal(size=5)
        offset *= ball.radius / np.linalg.norm(weights * offset, ord=norm)
        for shrink in (1 - 1e-3, 1 - 1e-16, 1.0, 1 + 3e-16, 1 + 1e-3):
            point = center + shrink * offset
            assert ball.contains(point) == exactly_inside(ball, point)
            seen.add(ball.contains(point))
    assert seen == {True, False}


def test_a_point_on_the_surface_is_a_member() -> None:
    ball = Ball(np.zeros(2), 5.0, 2.0, np.ones(2))
    assert ball.contains(np.array([3.0, 4.0]))
    assert not ball.contains(np.array([3.0, np.nextafter(4.0, 5)]))
    assert not ball.contains(np.array([np.inf, 0.0]))


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_the_box_holds_the_ball(norm: float) -> None:
    rng = np.random.default_rng(1)
    ball = Ball(rng.normal(size=4), 0.3, norm, rng.uniform(0.5, 3, size=4))
    lower, upper = ball.box()
    points = ball.toward(ball.center + rng.normal(size=(2000, 4)))
    assert (points >= lower).all() and (points <= upper).all()
    for axis in range(4):
        assert upper[axis] - ball.center[axis] == pytest.approx(0.3 / ball.weights[axis])


def test_a_region_with_a_ball_refuses_the_corners_of_its_box() -> None:
    region = lp_region(np.zeros(2), 1.0, 2.0, highest=0.9)
    assert region.upper.tolist() == [0.9, 0.9]
    assert region.contains_float32(np.array([0.5, 0.5], dtype=np.float32))
    corner = np.array([0.9, 0.9], dtype=np.float32)
    assert not region.contains_float32(corner)
    box = SearchBox.of(region)
    assert box is not None and not box.holds(np.float32([0.875, 0.875]))
    moved = box.nearest(corner.astype(np.float64)).astype(np.float32)
    assert box.holds(moved) and float(np.linalg.norm(moved)) > 0.99


def test_an_infinite_norm_is_a_box_in_data_units() -> None:
    region = lp_region(np.zeros(2), 0.1, np.inf, scale=np.array([0.5, 2.0]))
    assert region.ball is None
    np.testing.assert_allclose(region.upper, [0.2, 0.05])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((np.zeros(2), 1.0, 3.0, np.ones(2)), "expected norm 1 or 2, got 3"),
        ((np.zeros(2), -1.0, 2.0, np.ones(2)), "the radius at least 0"),
        ((np.zeros(2), 1.0, 2.0, np.zeros(2)), "weights must be finite and above 0"),
        ((np.zeros(2), 1.0, 2.0, np.ones(3)), "of one shape"),
    ],
)
def test_what_is_no_ball_is_refused(arguments: tuple, text: str) -> None:
    with pytest.raises(SpecificationError, match=text):
        Ball(*arguments)


def test_a_ball_over_other_inputs_is_refused() -> None:
    with pytest.raises(SpecificationError, match="expected a ball over 3 inputs, got 2"):
        Region(np.zeros(3), np.ones(3), (), ball=Ball(np.zeros(2), 1.0, 2.0, np.ones(2)))
