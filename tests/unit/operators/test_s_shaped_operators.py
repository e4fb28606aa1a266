"""Sigmoid and Tanh: chords and tangents on the right side of the curve, for every α.

A failure means false bounds in networks with such activations, the worse the more saturated.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import step_through
from auto_LiRPA_patches.operators.s_shaped import Sigmoid, SShaped, Tanh
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.activation_checks import (
    PRECISIONS,
    assert_encloses,
    intervals,
    line_values,
)

KINDS = [Sigmoid, Tanh]


def make(kind: type[SShaped], size: int) -> SShaped:
    return kind(kind.__name__, ((size,),), (size,))


def box_of(*pairs: tuple[float, float], dtype: torch.dtype = torch.float64) -> Interval:
    lower, upper = torch.tensor(pairs, dtype=dtype).T
    return Interval(lower.unsqueeze(0), upper.unsqueeze(0))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_default_lines_enclose_the_function(kind: type[SShaped], precision: torch.dtype) -> None:
    box = intervals(precision)
    operator = make(kind, box.lower.shape[1])
    assert_encloses(operator, operator.lines(operator.relax(box, None), None), box, largest=1.0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_every_alpha_enclose_the_function(
    kind: type[SShaped], precision: torch.dtype
) -> None:
    box = intervals(precision)
    operator = make(kind, box.lower.shape[1])
    generator = torch.Generator().manual_seed(1)
    steady = torch.linspace(0, 1, 6)[:, None].expand(-1, box.lower.shape[1])
    mixed = torch.rand(2, box.lower.shape[1], generator=generator)
    rows = torch.cat([steady, mixed]).to(precision)
    alpha = torch.stack([rows, rows.flip(0)]).unsqueeze(2)
    lines = operator.lines(operator.relax(box, None), alpha)
    for row in range(rows.shape[0]):
        assert_encloses(operator, lines, box, row, largest=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_initial_alpha_gives_the_default_lines(kind: type[SShaped]) -> None:
    box = intervals()
    operator = make(kind, box.lower.shape[1])
    relaxation = operator.relax(box, None)
    default = operator.lines(relaxation, None)
    started = operator.lines(relaxation, operator.initial_alpha(relaxation).unsqueeze(1))
    for name in ("lower_slope", "lower_intercept", "upper_slope", "upper_intercept"):
        assert torch.equal(getattr(default, name), getattr(started, name))


@pytest.mark.parametrize("kind", KINDS)
def test_chords_touch_at_both_ends(kind: type[SShaped]) -> None:
    """Below on the concave side, above on the convex side."""
    box = box_of((0.5, 2.0), (0.0, 1.0), (-2.0, -0.5), (-1.0, 0.0))
    operator = make(kind, 4)
    lines = operator.lines(operator.relax(box, None), None)
    for end in (box.lower, box.upper):
        below, above, _ = line_values(lines, end)
        value = operator.function(end)
        torch.testing.assert_close(below[:, :2], value[:, :2])
        torch.testing.assert_close(above[:, 2:], value[:, 2:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_tangents_touch_where_alpha_says(kind: type[SShaped], alpha: float) -> None:
    box = box_of((-3.0, -0.5), (-2.0, 0.0))
    operator = make(kind, 2)
    given = torch.full((2, 1, 1, 2), alpha, dtype=torch.float64)
    lines = operator.lines(operator.relax(box, None), given)
    point = box.lower + alpha * (box.upper - box.lower)
    below, _, _ = line_values(lines, point)
    torch.testing.assert_close(below, operator.function(point))
    torch.testing.assert_close(lines.lower_slope[0], operator.slope(point))


@pytest.mark.parametrize("kind", KINDS)
def test_the_furthest_tangent_ends_on_the_curve(kind: type[SShaped]) -> None:
    """Where a tangent crosses to the concave side, d* is where it meets (u, f(u))."""
    box = box_of((-5.0, 1.0), (-3.0, 0.5), (-50.0, 4.0))
    operator = make(kind, 3)
    lines = operator.lines(operator.relax(box, None), None)
    below, _, _ = line_values(lines, box.upper)
    torch.testing.assert_close(below, operator.function(box.upper), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_upper_side_is_the_lower_side_turned_about_the_middle(kind: type[SShaped]) -> None:
    box = intervals()
    turned = Interval(-box.upper, -box.lower)
    operator = make(kind, box.lower.shape[1])
    lines = operator.lines(operator.relax(box, None), None)
    other = operator.lines(operator.relax(turned, None), None)
    assert torch.equal(lines.upper_slope, other.lower_slope)
    assert other.lower_intercept is not None
    assert lines.upper_intercept is not None
    middle = 2 * operator.function(torch.zeros(1))
    assert torch.equal(lines.upper_intercept, middle - other.lower_intercept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slope_keeps_its_relative_precision_in_the_tails(kind: type[SShaped]) -> None:
    """A tangent far out is drawn across a wide interval: slope times width must not be noise."""
    at = torch.linspace(-30, 0, 400)
    exact = make(kind, 1).slope(at.double())
    if kind is Tanh:
        exact = 1 / torch.cosh(at.double()).square()
    torch.testing.assert_close(make(kind, 1).slope(at).double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_all_elements_can_be_relaxed(kind: type[SShaped]) -> None:
    box = box_of((-1.0, 1.0), (-2.0, 1.0))
    operator = make(kind, 2)
    assert bool(operator.unstable(box).all())
    with pytest.raises(ValueError, match="every element"):
        operator.relax(box, torch.tensor([1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_alpha", [False, True])
def test_backward_step_is_a_lower_bound(kind: type[SShaped], with_alpha: bool) -> None:
    torch.manual_seed(27)
    box = box_of((-1.0, 2.0), (0.5, 1.5), (-2.0, -1.0), (-0.1, 0.1), (1.0, 1.0), (-9.0, 30.0))
    operator = make(kind, 6)
    alpha = torch.rand(2, 4, 1, 6).double() if with_alpha else None
    coeffs = torch.randn(4, 1, 6).double()
    lines = operator.lines(operator.relax(box, None), alpha)
    (below,), bias = operator.backward(OneRankWeights(), coeffs, lines)
    assert bias is not None
    for _ in range(400):
        value = box.lower + torch.rand(1, 6).double() * (box.upper - box.lower)
        direct = (coeffs * operator.function(value)).sum(-1)
        assert bool(((below * value).sum(-1) + bias <= direct + 1e-12).all())


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_in_coefficients_and_alpha(kind: type[SShaped]) -> None:
    torch.manual_seed(28)
    operator = make(kind, 4)
    relaxation = operator.relax(box_of((-1.0, 2.0), (0.5, 1.5), (-2.0, -1.0), (-60.0, 90.0)), None)
    coeffs = torch.randn(3, 1, 4).double().requires_grad_(True)
    alpha = (0.2 + 0.6 * torch.rand(2, 3, 1, 4).double()).requires_grad_(True)

    def step(rows: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        below, bias = step_through(rows, operator.lines(relaxation, where))
        assert bias is not None
        return below, bias

    assert torch.autograd.gradcheck(step, (coeffs, alpha))


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_chords_in_the_bounds(kind: type[SShaped]) -> None:
    lower = torch.tensor([[0.5, 0.1]]).double().requires_grad_(True)
    upper = torch.tensor([[1.5, 3.0]]).double().requires_grad_(True)
    operator = make(kind, 2)

    def chord(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        lines = operator.lines(operator.relax(Interval(low, high), None), None)
        assert lines.lower_intercept is not None
        return lines.lower_slope, lines.lower_intercept

    assert torch.autograd.gradcheck(chord, (lower, upper))


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_finite_over_every_interval(kind: type[SShaped]) -> None:
    """One NaN from a point or a saturated interval would end up in every α of the optimiser."""
    box = intervals()
    lower, upper = box.lower.clone().requires_grad_(True), box.upper.clone().requires_grad_(True)
    operator = make(kind, lower.shape[1])
    alpha = torch.rand(2, 1, 1, lower.shape[1]).requires_grad_(True)
    lines = operator.lines(operator.relax(Interval(lower, upper), None), alpha)
    for sign in (1.0, -1.0):
        below, bias = step_through(sign * torch.ones(1, 1, lower.shape[1]), lines)
        assert bias is not None
        total = below.sum() + bias.sum()
        grads = torch.autograd.grad(total, (lower, upper, alpha), retain_graph=True)
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [(Sigmoid, -10.3, -9.6), (Sigmoid, -24.0, -22.0), (Tanh, -0.0023, 0.0056), (Tanh, -0.23, 2e-4)],
)
def test_lines_hold_where_the_function_is_far_smaller_than_its_height(
    kind: type[SShaped], low: float, high: float
) -> None:
    """Small outputs may have large weights behind them: what rounding takes is multiplied."""
    torch.manual_seed(6)
    ends = low + (high - low) * torch.rand(2, 500)
    box = Interval(ends.amin(0, keepdim=True), ends.amax(0, keepdim=True))
    operator = make(kind, 500)
    lines = operator.lines(operator.relax(box, None), torch.rand(2, 1, 1, 500))
    assert lines.lower_intercept is not None
    assert lines.upper_intercept is not None
    lower, upper = box.lower.double(), box.upper.double()
    for share in torch.linspace(0, 1, 21, dtype=torch.float64):
        value = lower + share * (upper - lower)
        exact = operator.function(value)
        assert bool((lines.lower_slope[0] * value + lines.lower_intercept[0] <= exact).all())
        assert bool((lines.upper_slope[0] * value + lines.upper_intercept[0] >= exact).all())
