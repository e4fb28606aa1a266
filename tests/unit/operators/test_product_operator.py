"""The product of two perturbed values: McCormick's planes and the box's corners.

A failure means unsound bounds wherever a network multiplies two of its own values.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators.arithmetic import Product, ProductPlanes
from auto_LiRPA_patches.operators.base import Shape
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.operator_checks import random_box

WEIGHTS = OneRankWeights()
PAIRS: list[tuple[Shape, Shape]] = [((3,), (3,)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((2,), (1,))]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(22)


def product(x: Shape, y: Shape) -> Product:
    return Product("product", (x, y), tuple(torch.broadcast_shapes(x, y)))


def points_of(box: Interval, count: int) -> list[Tensor]:
    """Corners and random points of a box, each ``[B, *shape]``."""
    shares = [
        torch.rand_like(box.lower).round() if turn % 2 else torch.rand_like(box.lower)
        for turn in range(count)
    ]
    return [box.lower + share * (box.upper - box.lower) for share in shares]


def widened(value: Tensor, target: Shape) -> Tensor:
    ones = (1,) * (len(target) + 1 - value.dim())
    return value.reshape(value.shape[0], *ones, *value.shape[1:])


@pytest.mark.parametrize(("x_shape", "y_shape"), PAIRS)
def test_value_and_interval(x_shape: Shape, y_shape: Shape) -> None:
    operator = product(x_shape, y_shape)
    x_box, y_box = random_box(x_shape, 2), random_box(y_shape, 2)
    image = operator.interval(WEIGHTS, x_box, y_box)
    assert image.lower.shape == (2, *operator.output_shape)
    seen_low, seen_high = torch.full_like(image.lower, torch.inf), image.upper - torch.inf
    for x, y in zip(points_of(x_box, 300), points_of(y_box, 300), strict=True):
        value = operator.forward(WEIGHTS, x, y)
        expected = widened(x, operator.output_shape) * widened(y, operator.output_shape)
        assert torch.equal(value, expected)
        assert bool((image.lower <= value + 1e-12).all() & (value <= image.upper + 1e-12).all())
        seen_low, seen_high = torch.minimum(seen_low, value), torch.maximum(seen_high, value)
    torch.testing.assert_close(seen_low, image.lower, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(seen_high, image.upper, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("x_shape", "y_shape"), PAIRS)
def test_planes_enclose_the_product(x_shape: Shape, y_shape: Shape) -> None:
    operator = product(x_shape, y_shape)
    x_box, y_box = random_box(x_shape, 3), random_box(y_shape, 3)
    planes = operator.relax(x_box, y_box)
    for x, y in zip(points_of(x_box, 200), points_of(y_box, 200), strict=True):
        below, above = plane_values(planes, x, y, operator.output_shape)
        value = operator.forward(WEIGHTS, x, y)
        assert bool((below <= value + 1e-12).all())
        assert bool((value <= above + 1e-12).all())


def plane_values(
    planes: ProductPlanes, x: Tensor, y: Tensor, target: Shape
) -> tuple[Tensor, Tensor]:
    x, y = widened(x, target), widened(y, target)
    return (
        planes.low_x * x + planes.low_y * y + planes.low_c,
        planes.up_x * x + planes.up_y * y + planes.up_c,
    )


def test_planes_touch_at_the_corners_that_theory_says() -> None:
    """The lower plane at (l, l) and its two neighbours, the upper at (l, u) and its neighbours."""
    operator = product((1,), (1,))
    x_box = Interval(torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double())
    y_box = Interval(torch.tensor([[-3.0]]).double(), torch.tensor([[0.5]]).double())
    planes = operator.relax(x_box, y_box)
    for x, y, touches_below, touches_above in (
        (x_box.lower, y_box.lower, True, True),
        (x_box.lower, y_box.upper, True, True),
        (x_box.upper, y_box.lower, True, False),
        (x_box.upper, y_box.upper, False, True),
    ):
        below, above = plane_values(planes, x, y, (1,))
        assert (float((x * y - below).abs()) < 1e-12) is touches_below
        assert (float((above - x * y).abs()) < 1e-12) is touches_above


@pytest.mark.parametrize(("x_shape", "y_shape"), PAIRS)
def test_backward_step_is_a_lower_bound(x_shape: Shape, y_shape: Shape) -> None:
    operator = product(x_shape, y_shape)
    x_box, y_box = random_box(x_shape, 2), random_box(y_shape, 2)
    coeffs = torch.randn(5, 2, *operator.output_shape, dtype=torch.float64)
    (to_x, to_y), bias = operator.backward(WEIGHTS, coeffs, operator.relax(x_box, y_box))
    assert bias is not None
    assert to_x.shape == (5, 2, *x_shape)
    assert to_y.shape == (5, 2, *y_shape)
    for x, y in zip(points_of(x_box, 200), points_of(y_box, 200), strict=True):
        direct = (coeffs * operator.forward(WEIGHTS, x, y)).flatten(2).sum(-1)
        through = (to_x * x).flatten(2).sum(-1) + (to_y * y).flatten(2).sum(-1) + bias
        assert bool((through <= direct + 1e-10).all())


def test_a_point_operand_makes_the_product_exact() -> None:
    operator = product((3,), (3,))
    x_box = random_box((3,), 1)
    y = torch.randn(1, 3, dtype=torch.float64)
    planes = operator.relax(x_box, Interval(y, y))
    for x in points_of(x_box, 20):
        below, above = plane_values(planes, x, y, (3,))
        torch.testing.assert_close(below, x * y)
        torch.testing.assert_close(above, x * y)


def test_gradient_of_the_backward_step_in_coefficients_and_bounds() -> None:
    operator = product((2, 3), (3,))
    x_box, y_box = random_box((2, 3), 2), random_box((3,), 2)
    coeffs = torch.randn(2, 2, 2, 3, dtype=torch.float64)
    leaves = [coeffs, x_box.lower, x_box.upper, y_box.lower, y_box.upper]

    def step(rows: Tensor, *bounds: Tensor) -> tuple[Tensor, ...]:
        x, y = Interval(*bounds[:2]), Interval(*bounds[2:])
        below, bias = operator.backward(WEIGHTS, rows, operator.relax(x, y))
        assert bias is not None
        return (*below, bias)

    assert torch.autograd.gradcheck(step, [leaf.requires_grad_(True) for leaf in leaves])
