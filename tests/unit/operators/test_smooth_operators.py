"""Lines of any slope around exp, log, sqrt, 1/x, powers, sine and cosine.

A failure means a line on the wrong side of the function, or an infinity taken for a bound.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators.curves import Exp, Log, Power, Reciprocal, Sqrt
from auto_LiRPA_patches.operators.gaussian import Erf, Gelu
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.smooth import Smooth
from auto_LiRPA_patches.operators.waves import Cos, Sin
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.activation_checks import PRECISIONS, assert_encloses, intervals

WEIGHTS = OneRankWeights()
SHAPE = ((1,),)
# name -> operator, and the least and greatest input on which it is tried
OPERATORS: dict[str, tuple[Smooth, float, float]] = {
    "exp": (Exp("f", SHAPE, (1,)), -100.0, 20.0),
    "log": (Log("f", SHAPE, (1,)), 1e-6, 1e6),
    "sqrt": (Sqrt("f", SHAPE, (1,)), 0.0, 1e6),
    "reciprocal": (Reciprocal("f", SHAPE, (1,)), 1e-3, 1e4),
    "reciprocal-negative": (Reciprocal("f", SHAPE, (1,)), -1e4, -1e-3),
    "square": (Power("f", SHAPE, (1,), 2), -1e3, 1e3),
    "cube": (Power("f", SHAPE, (1,), 3), -100.0, 100.0),
    "fourth-power": (Power("f", SHAPE, (1,), 4), -20.0, 20.0),
    "fifth-power": (Power("f", SHAPE, (1,), 5), -8.0, 8.0),
    "sin": (Sin("f", SHAPE, (1,)), -100.0, 100.0),
    "cos": (Cos("f", SHAPE, (1,)), -100.0, 100.0),
    "erf": (Erf("f", SHAPE, (1,)), -20.0, 20.0),
    "gelu": (Gelu("f", SHAPE, (1,)), -60.0, 100.0),
    "gelu-scaled": (Gelu("f", SHAPE, (1,), factor=2.0, inner=3.0), -20.0, 20.0),
}
CASES = [(name, precision) for name in OPERATORS for precision in PRECISIONS]


def boxes_inside(name: str, precision: torch.dtype) -> tuple[Smooth, Interval]:
    operator, least, greatest = OPERATORS[name]
    everywhere = intervals(precision)
    box = Interval(everywhere.lower.clamp(least, greatest), everywhere.upper.clamp(least, greatest))
    torch.manual_seed(5)
    ends = least + (greatest - least) * torch.rand(2, 200, dtype=precision) ** 2
    drawn = Interval(ends.amin(0, keepdim=True), ends.amax(0, keepdim=True))
    return operator, Interval(
        torch.cat([box.lower, drawn.lower], 1), torch.cat([box.upper, drawn.upper], 1)
    )


def largest_value(operator: Smooth, box: Interval) -> float:
    ends = torch.stack(
        [operator.function(box.lower.double()), operator.function(box.upper.double())]
    )
    return float(ends.abs().max()) * 1e-3


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_lines_enclose_the_function_for_every_alpha(name: str, precision: torch.dtype) -> None:
    operator, box = boxes_inside(name, precision)
    relaxation = operator.relax(box, None)
    assert_encloses(operator, operator.lines(relaxation, None), box)
    start = operator.initial_alpha(relaxation).unsqueeze(1)
    torch.manual_seed(6)
    for alpha in (start, torch.zeros_like(start), torch.ones_like(start), torch.rand_like(start)):
        assert_encloses(operator, operator.lines(relaxation, alpha), box)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_interval_is_the_range(name: str) -> None:
    operator, box = boxes_inside(name, torch.float64)
    image = operator.interval(WEIGHTS, box)
    share = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    values = operator.function(box.lower + share * (box.upper - box.lower))
    size = 1e-9 * (1 + values.abs().amax(0))
    assert bool((image.lower[0] <= values.amin(0) + size).all())
    assert bool((image.upper[0] >= values.amax(0) - size).all())
    narrow = (box.upper - box.lower)[0] < 20
    near = 1e-3 * (1 + values.abs().amax(0))
    assert bool((image.lower[0] >= values.amin(0) - near)[narrow].all())
    assert bool((image.upper[0] <= values.amax(0) + near)[narrow].all())


@pytest.mark.parametrize("name", OPERATORS)
def test_the_alpha_that_the_optimiser_starts_from_gives_crowns_lines(name: str) -> None:
    operator, box = boxes_inside(name, torch.float64)
    relaxation = operator.relax(box, None)
    own = operator.lines(relaxation, None)
    started = operator.lines(relaxation, operator.initial_alpha(relaxation).unsqueeze(1))
    wide = (box.upper - box.lower)[0] > 1e-3
    for one, other in (
        (own.lower_slope, started.lower_slope),
        (own.upper_slope, started.upper_slope),
    ):
        scale = 1e-6 * (1 + relaxation.steepest.abs() + relaxation.flattest.abs())
        assert bool(((one - other).abs() <= scale)[0, 0, wide].all())


def test_lines_touch_where_theory_says() -> None:
    """Of a convex function: chord above through both ends, below a tangent parallel to it."""
    box = Interval(torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double())
    operator = Exp("f", SHAPE, (1,))
    lines = operator.lines(operator.relax(box, None), None)
    chord = (math.exp(2) - math.exp(-1)) / 3
    assert float(lines.upper_slope) == pytest.approx(chord)
    assert float(lines.lower_slope) == pytest.approx(chord)
    assert lines.upper_intercept is not None
    assert lines.lower_intercept is not None
    assert float(lines.upper_intercept) == pytest.approx(math.exp(-1) + chord)
    assert float(lines.lower_intercept) == pytest.approx(chord - chord * math.log(chord))


@pytest.mark.parametrize(
    ("operator", "lower", "upper"),
    [
        (Log("f", SHAPE, (1,)), -1.0, 2.0),
        (Log("f", SHAPE, (1,)), 0.0, 2.0),
        (Sqrt("f", SHAPE, (1,)), -1e-9, 1.0),
        (Reciprocal("f", SHAPE, (1,)), -1.0, 1.0),
        (Reciprocal("f", SHAPE, (1,)), 0.0, 1.0),
        (Reciprocal("f", SHAPE, (1,)), -1.0, 0.0),
    ],
)
def test_outside_the_domain_nothing_finite_is_claimed(
    operator: Smooth, lower: float, upper: float
) -> None:
    box = Interval(torch.tensor([[lower]]).double(), torch.tensor([[upper]]).double())
    image = operator.interval(WEIGHTS, box)
    assert float(image.lower) == -math.inf
    assert float(image.upper) == math.inf
    lines = operator.lines(operator.relax(box, None), None)
    coeffs = torch.tensor([[[1.0]], [[-1.0]]], dtype=torch.float64)
    _, bias = operator.backward(WEIGHTS, coeffs, lines)
    assert bias is not None
    assert not bool(torch.isfinite(bias).any())


def test_an_infinite_end_leaves_the_other_side_usable() -> None:
    """1 / s over [1, inf) lies in [0, 1]: what softmax makes of scores that overflow."""
    box = Interval(torch.ones(1, 1), torch.full((1, 1), torch.inf))
    operator = Reciprocal("f", SHAPE, (1,))
    image = operator.interval(WEIGHTS, box)
    assert (float(image.lower), float(image.upper)) == (0.0, 1.0)
    lines = operator.lines(operator.relax(box, None), None)
    assert float(lines.lower_slope) == 0.0
    assert lines.lower_intercept is not None
    assert lines.upper_intercept is not None
    assert float(lines.lower_intercept) == pytest.approx(0.0, abs=1e-6)
    assert float(lines.upper_intercept) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    "name", ["exp", "reciprocal", "square", "cube", "sin", "log", "erf", "gelu"]
)
def test_gradient_in_bounds_and_alpha(name: str) -> None:
    operator = OPERATORS[name][0]
    lower = torch.tensor([[0.3, 0.5, 1.1]], dtype=torch.float64, requires_grad=True)
    upper = torch.tensor([[0.9, 2.0, 1.7]], dtype=torch.float64, requires_grad=True)
    start = operator.initial_alpha(operator.relax(Interval(lower, upper), None))
    alpha = (0.25 + 0.5 * torch.rand_like(start)).unsqueeze(1).detach().requires_grad_(True)

    def intercepts(share: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
        # The range of slopes is held fixed by design, so bounds and α are tried apart.
        lines = operator.lines(operator.relax(Interval(low, high), None), share)
        assert lines.lower_intercept is not None
        assert lines.upper_intercept is not None
        return lines.lower_slope, lines.lower_intercept, lines.upper_slope, lines.upper_intercept

    fixed = (lower.detach(), upper.detach())
    assert torch.autograd.gradcheck(lambda share: intercepts(share, *fixed), (alpha,))
    steps = intercepts(alpha.detach(), lower, upper)
    gradients = torch.autograd.grad(torch.cat(steps).sum(), (lower, upper))
    assert all(bool(torch.isfinite(part).all()) for part in gradients)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_no_line_misses_a_crest_where_periods_are_not_resolved(name: str) -> None:
    """Far out, rounding moves the points where the slope is met by more than a period."""
    operator = OPERATORS[name][0]
    torch.manual_seed(7)
    ends = 10 ** (9 + 17 * torch.rand(2, 500, dtype=torch.float64)) * torch.randn(2, 500).sign()
    box = Interval(ends.amin(0, keepdim=True), ends.amax(0, keepdim=True))
    lines = operator.lines(operator.relax(box, None), None)
    assert lines.lower_intercept is not None
    assert lines.upper_intercept is not None
    # Every interval holds many periods, so that both extremes are taken beside any point.
    for end in (box.lower, box.upper):
        assert bool((lines.lower_slope[0] * end + lines.lower_intercept[0] <= -1 + 1e-9).all())
        assert bool((lines.upper_slope[0] * end + lines.upper_intercept[0] >= 1 - 1e-9).all())
    image = operator.interval(WEIGHTS, box)
    assert bool((image.lower == -1).all() & (image.upper == 1).all())
