"""Products of two perturbed values, elementwise and of matrices: McCormick's planes and corners.

A failure means unsound bounds where a network multiplies its own values: gates, attention.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import Shape
from auto_LiRPA_patches.operators.bilinear import Bilinear, MatrixProduct, Product
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.operator_checks import random_box

WEIGHTS = OneRankWeights()
ELEMENTWISE: list[tuple[Shape, Shape]] = [
    ((3,), (3,)),
    ((2, 3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((2,), (1,)),
]
MATRICES: list[tuple[Shape, Shape]] = [
    ((2, 3), (3, 4)),
    ((2, 2, 3), (2, 3, 1)),
    ((1, 4), (4, 1)),
    ((3, 2, 2), (2, 5)),
    ((2, 1, 2, 3), (3, 3, 2)),
]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(22)


def product(x: Shape, y: Shape) -> Product:
    return Product("product", (x, y), tuple(torch.broadcast_shapes(x, y)))


def matrix_product(x: Shape, y: Shape) -> MatrixProduct:
    front = tuple(torch.broadcast_shapes(x[:-2], y[:-2]))
    return MatrixProduct("matmul", (x, y), (*front, x[-2], y[-1]))


CASES: dict[str, Bilinear] = {
    **{f"elementwise-{x}-{y}": product(x, y) for x, y in ELEMENTWISE},
    **{f"matrices-{x}-{y}": matrix_product(x, y) for x, y in MATRICES},
}


@pytest.fixture(params=CASES)
def operator(request: pytest.FixtureRequest) -> Bilinear:
    return CASES[request.param]


def boxes_of(operator: Bilinear, batch: int) -> tuple[Interval, Interval]:
    x_shape, y_shape = operator.input_shapes
    return random_box(x_shape, batch), random_box(y_shape, batch)


def points_of(box: Interval, count: int) -> list[Tensor]:
    """Corners and random points of a box, each ``[B, *shape]``."""
    shares = [
        torch.rand_like(box.lower).round() if turn % 2 else torch.rand_like(box.lower)
        for turn in range(count)
    ]
    return [box.lower + share * (box.upper - box.lower) for share in shares]


def plain(operator: Bilinear, x: Tensor, y: Tensor) -> Tensor:
    """The same in plain torch, one box after the other."""
    function = torch.matmul if isinstance(operator, MatrixProduct) else torch.mul
    return torch.stack([function(one, other) for one, other in zip(x, y, strict=True)])


def alphas_of(operator: Bilinear, rows: int, batch: int) -> list[Tensor | None]:
    """No α, random ones per row or shared by all rows, and both ends."""
    terms = int(torch.tensor(operator.term_shape).prod())
    shape = (2, rows, batch, terms)
    return [
        None,
        torch.rand(shape, dtype=torch.float64),
        torch.rand(2, 1, batch, terms, dtype=torch.float64),
        torch.zeros(shape, dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
    ]


def test_value_and_interval(operator: Bilinear) -> None:
    x_box, y_box = boxes_of(operator, 2)
    image = operator.interval(WEIGHTS, x_box, y_box)
    assert image.lower.shape == (2, *operator.output_shape)
    for x, y in zip(points_of(x_box, 200), points_of(y_box, 200), strict=True):
        value = operator.forward(WEIGHTS, x, y)
        torch.testing.assert_close(value, plain(operator, x, y), rtol=1e-12, atol=1e-12)
        assert bool((image.lower <= value + 1e-12).all() & (value <= image.upper + 1e-12).all())


def test_the_interval_is_the_exact_range_of_each_element() -> None:
    """Terms are extreme at corners, and those of one element are independent of each other."""
    operator = matrix_product((1, 2), (2, 1))
    x_box, y_box = boxes_of(operator, 4)
    image = operator.interval(WEIGHTS, x_box, y_box)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).double()
    values = []
    for corner in corners:
        x = x_box.lower + corner[:2].view(1, 1, 2) * (x_box.upper - x_box.lower)
        y = y_box.lower + corner[2:].view(1, 2, 1) * (y_box.upper - y_box.lower)
        values.append(x @ y)
    torch.testing.assert_close(image.lower, torch.stack(values).amin(0))
    torch.testing.assert_close(image.upper, torch.stack(values).amax(0))


def test_backward_step_is_a_lower_bound_for_every_alpha(operator: Bilinear) -> None:
    rows, batch = 5, 2
    x_box, y_box = boxes_of(operator, batch)
    coeffs = torch.randn(rows, batch, *operator.output_shape, dtype=torch.float64)
    factors = operator.relax(x_box, y_box)
    for alpha in alphas_of(operator, rows, batch):
        lines = operator.lines(factors, alpha)
        (to_x, to_y), bias = operator.backward(WEIGHTS, coeffs, lines)
        assert bias is not None
        assert to_x.shape == (rows, batch, *operator.input_shapes[0])
        assert to_y.shape == (rows, batch, *operator.input_shapes[1])
        for x, y in zip(points_of(x_box, 100), points_of(y_box, 100), strict=True):
            direct = (coeffs * plain(operator, x, y)).flatten(2).sum(-1)
            through = (to_x * x).flatten(2).sum(-1) + (to_y * y).flatten(2).sum(-1) + bias
            assert bool((through <= direct + 1e-10).all())


def test_no_alpha_is_the_alpha_that_the_optimiser_starts_from(operator: Bilinear) -> None:
    x_box, y_box = boxes_of(operator, 3)
    coeffs = torch.randn(4, 3, *operator.output_shape, dtype=torch.float64)
    factors = operator.relax(x_box, y_box)
    start = operator.initial_alpha(factors).unsqueeze(1)
    own = operator.backward(WEIGHTS, coeffs, operator.lines(factors, None))
    started = operator.backward(WEIGHTS, coeffs, operator.lines(factors, start))
    torch.testing.assert_close(own, started)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_planes_touch_at_the_corners_that_theory_says(share: float) -> None:
    """Each plane touches in one corner and its two neighbours, and nowhere else."""
    operator = product((1,), (1,))
    x_box = Interval(torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double())
    y_box = Interval(torch.tensor([[-3.0]]).double(), torch.tensor([[0.5]]).double())
    alpha = torch.full((2, 1, 1, 1), share, dtype=torch.float64)
    coeffs = torch.tensor([[[1.0]], [[-1.0]]], dtype=torch.float64)
    lines = operator.lines(operator.relax(x_box, y_box), alpha.expand(2, 2, 1, 1))
    (to_x, to_y), bias = operator.backward(WEIGHTS, coeffs, lines)
    assert bias is not None
    farthest_below = ("upper", "upper") if share == 1.0 else ("lower", "lower")
    farthest_above = ("upper", "lower") if share == 1.0 else ("lower", "upper")
    for x_side in ("lower", "upper"):
        for y_side in ("lower", "upper"):
            x, y = getattr(x_box, x_side), getattr(y_box, y_side)
            plane = (to_x * x + to_y * y).flatten(1).sum(-1) + bias[:, 0]
            below, above = float(plane[0]), float(-plane[1])
            value = float(x * y)
            touches = abs(value - below) < 1e-12, abs(above - value) < 1e-12
            expected = (x_side, y_side) != farthest_below, (x_side, y_side) != farthest_above
            assert touches == expected


def test_parallel_planes_are_half_as_far_at_worst_as_one_of_mccormicks() -> None:
    operator = product((1,), (1,))
    x_box, y_box = boxes_of(operator, 8)
    factors = operator.relax(x_box, y_box)
    coeffs = torch.ones(1, 8, 1, dtype=torch.float64)
    gaps = []
    for alpha in (None, torch.ones(2, 1, 8, 1, dtype=torch.float64)):
        (to_x, to_y), bias = operator.backward(WEIGHTS, coeffs, operator.lines(factors, alpha))
        assert bias is not None
        corners = [
            (x * y - to_x[0] * x - to_y[0] * y).sum(-1) - bias[0]
            for x in (x_box.lower, x_box.upper)
            for y in (y_box.lower, y_box.upper)
        ]
        gaps.append(torch.stack(corners).amax(0))
    torch.testing.assert_close(2 * gaps[0], gaps[1])


def test_a_point_operand_makes_the_product_exact(operator: Bilinear) -> None:
    x_box, _ = boxes_of(operator, 1)
    y = torch.randn(1, *operator.input_shapes[1], dtype=torch.float64)
    coeffs = torch.randn(3, 1, *operator.output_shape, dtype=torch.float64)
    lines = operator.lines(operator.relax(x_box, Interval(y, y)), None)
    (to_x, to_y), bias = operator.backward(WEIGHTS, coeffs, lines)
    assert bias is not None
    for x in points_of(x_box, 20):
        direct = (coeffs * plain(operator, x, y)).flatten(2).sum(-1)
        through = (to_x * x).flatten(2).sum(-1) + (to_y * y).flatten(2).sum(-1) + bias
        torch.testing.assert_close(through, direct)


def test_gradient_in_coefficients_bounds_and_alpha(operator: Bilinear) -> None:
    x_box, y_box = boxes_of(operator, 2)
    coeffs = torch.randn(2, 2, *operator.output_shape, dtype=torch.float64)
    terms = int(torch.tensor(operator.term_shape).prod())
    alpha = torch.rand(2, 2, 2, terms, dtype=torch.float64)
    leaves = [coeffs, alpha, x_box.lower, x_box.upper, y_box.lower, y_box.upper]

    def step(rows: Tensor, shares: Tensor, *bounds: Tensor) -> tuple[Tensor, ...]:
        factors = operator.relax(Interval(*bounds[:2]), Interval(*bounds[2:]))
        below, bias = operator.backward(WEIGHTS, rows, operator.lines(factors, shares))
        assert bias is not None
        return (*below, bias)

    inputs = [leaf.detach().requires_grad_(True) for leaf in leaves]
    assert torch.autograd.gradcheck(step, inputs, fast_mode=True)
