"""Softmax's parts: differences of scores, their exponentials, and sums.

A failure means unsound attention, or bounds that forget that a score minus itself is zero.
"""

from __future__ import annotations

import math

import pytest
import torch

from auto_LiRPA_patches.operators.curves import Exp
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.reduction import Reduction
from auto_LiRPA_patches.operators.softmax import (
    Differences,
    ExpDifferences,
    SaturatingExp,
    Share,
)
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators import operator_checks as checks
from tests.unit.operators.operator_checks import Case

WEIGHTS = OneRankWeights()
SHAPE, WIDE = (2, 4), (2, 4, 4)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(23)


def differences() -> Case:
    operator = Differences("d", (SHAPE,), WIDE)
    return Case(operator, OneRankWeights(), lambda x: x.unsqueeze(-2) - x.unsqueeze(-1))


def reduction(axes: tuple[int, ...], keep: bool, mean: bool) -> Case:
    shape = (3, 2, 4)
    dims = [axis + 1 for axis in axes]
    output = tuple(torch.zeros(1, *shape).sum(dims, keepdim=keep).shape[1:])
    count = int(torch.tensor([shape[axis] for axis in axes]).prod())
    operator = Reduction("r", (shape,), output or (1,), axes, keep, 1 / count if mean else 1.0)
    return Case(
        operator,
        OneRankWeights(),
        lambda x: (x.mean if mean else x.sum)(dims, keepdim=keep).reshape(-1, *(output or (1,))),
    )


CASES = {
    "differences": differences,
    "sum-last": lambda: reduction((2,), False, False),
    "sum-kept": lambda: reduction((0, 2), True, False),
    "mean-first": lambda: reduction((0,), False, True),
    "mean-of-all": lambda: reduction((0, 1, 2), False, True),
}


@pytest.mark.parametrize("name", CASES)
def test_affine_parts_are_exact(name: str) -> None:
    case = CASES[name]()
    checks.check_value(case)
    checks.check_affine_step(case)
    checks.check_affine_interval(case)
    checks.check_gradient_of_step(case)
    checks.check_gradient_of_value(case)


def test_exponentials_of_differences_are_bounded_for_every_alpha() -> None:
    operator = ExpDifferences("e", (SHAPE,), WIDE)
    box = checks.random_box(SHAPE, 3)
    image = operator.interval(WEIGHTS, box)
    diagonal = torch.diagonal(image.lower, dim1=-2, dim2=-1)
    assert torch.equal(diagonal, torch.ones_like(diagonal))
    relaxation = operator.relax(box)
    start = operator.initial_alpha(relaxation).unsqueeze(1)
    coeffs = torch.randn(5, 3, *WIDE, dtype=torch.float64)
    for alpha in (None, start, torch.zeros_like(start), torch.rand(1, 5, 3, 32).double()):
        (toward,), bias = operator.backward(WEIGHTS, coeffs, operator.lines(relaxation, alpha))
        assert bias is not None
        for _ in range(100):
            share = torch.rand_like(box.lower)
            x = box.lower + share * (box.upper - box.lower)
            value = operator.forward(WEIGHTS, x)
            assert bool((image.lower - 1e-12 <= value).all() & (value <= image.upper + 1e-12).all())
            direct = (coeffs * value).flatten(2).sum(-1)
            through = (toward * x).flatten(2).sum(-1) + bias
            assert bool((through <= direct + 1e-9).all())


def test_fused_and_separate_exponentials_agree_over_the_same_intervals() -> None:
    fused, box = ExpDifferences("e", (SHAPE,), WIDE), checks.random_box(SHAPE, 2)
    between = Differences("d", (SHAPE,), WIDE)
    exp = Exp("e", (WIDE,), WIDE)
    coeffs = torch.randn(3, 2, *WIDE, dtype=torch.float64)
    bounds = between.interval(WEIGHTS, box).flatten()
    (inner,), bias = exp.backward(WEIGHTS, coeffs, exp.lines(exp.relax(bounds, None), None))
    (outer,), _ = between.backward(WEIGHTS, inner, None)
    (toward,), own = fused.backward(WEIGHTS, coeffs, fused.lines(fused.relax(box), None))
    torch.testing.assert_close(toward, outer)
    torch.testing.assert_close(own, bias)


def far_box(batch: int) -> Interval:
    """Scores up to 1000 apart, some of them fixed: differences on both sides of where exp ends."""
    center = torch.randn(batch, *SHAPE, dtype=torch.float64) * torch.tensor([1.0, 30, 300]).view(
        3, 1, 1
    ).repeat(batch // 3, 1, 1)
    radius = torch.rand(batch, *SHAPE, dtype=torch.float64) * center.abs()
    radius = radius * (torch.rand_like(radius) > 0.3)
    return Interval(center - radius, center + radius)


@pytest.mark.parametrize("fused", [True, False])
def test_softmax_of_scores_far_apart_lies_within_its_bounds(fused: bool) -> None:
    box = far_box(6)
    between = Differences("d", (SHAPE,), WIDE)
    if fused:
        terms = ExpDifferences("e", (SHAPE,), WIDE, saturates=True).interval(WEIGHTS, box)
    else:
        terms = SaturatingExp("e", (WIDE,), WIDE).interval(WEIGHTS, between.interval(WEIGHTS, box))
    total = Reduction("s", (WIDE,), SHAPE, (2,)).interval(WEIGHTS, terms)
    share = Share("y", (SHAPE,), SHAPE)
    image = share.interval(WEIGHTS, total)
    assert bool((image.lower >= 0).all() & (image.upper <= 1).all())
    relaxation = share.relax(total.flatten(), None)
    start = share.initial_alpha(relaxation).unsqueeze(1)
    coeffs = torch.randn(5, 6, *SHAPE, dtype=torch.float64)
    for alpha in (None, torch.zeros_like(start), torch.rand(2, 5, 6, 8).double()):
        (toward,), bias = share.backward(WEIGHTS, coeffs, share.lines(relaxation, alpha))
        assert bias is not None
        for _ in range(50):
            x = box.lower + torch.rand_like(box.lower) * (box.upper - box.lower)
            value = torch.softmax(x, dim=-1)
            assert bool((image.lower - 1e-15 <= value).all() & (value <= image.upper + 1e-15).all())
            cut = torch.exp(between.apply(WEIGHTS, x).clamp(max=20)).sum(-1)
            through = (toward * cut).flatten(2).sum(-1) + bias
            direct = (coeffs * value).flatten(2).sum(-1)
            assert bool((through <= direct + 1e-12 * (1 + bias.abs())).all())


def test_a_share_gives_back_what_the_cut_took() -> None:
    # 1 / (1 + exp(30)) lies below 1 / (1 + exp(20)), which is what is computed.
    share, point = Share("y", ((1,),), (1,)), 1 + torch.exp(torch.tensor([[20.0]]).double())
    image = share.interval(WEIGHTS, Interval(point, point))
    assert float(image.lower) <= 1 / (1 + math.exp(30)) < 1 / float(point)


@pytest.mark.parametrize("low", [-30.0, -3.0, 19.0, 21.0])
def test_the_end_of_exp_is_bounded_for_every_alpha(low: float) -> None:
    operator = SaturatingExp("e", ((5,),), (5,))
    lower = torch.full((1, 5), low, dtype=torch.float64)
    upper = lower + torch.tensor([[0.0, 0.5, 2.0, 20.0, 500.0]], dtype=torch.float64)
    relaxation = operator.relax(Interval(lower, upper), None)
    alpha = torch.linspace(0, 1, 11, dtype=torch.float64).view(1, 11, 1, 1).expand(1, 11, 1, 5)
    for given in (None, alpha):
        lines = operator.lines(relaxation, given)
        for share in torch.linspace(0, 1, 101, dtype=torch.float64):
            x = lower + share * (upper - lower)
            value = torch.exp(x.clamp(max=20))
            below = lines.lower_slope * x + lines.lower_intercept
            above = lines.upper_slope * x + lines.upper_intercept
            noise = 1e-12 * (1 + (lines.lower_slope * x).abs() + (lines.upper_slope * x).abs())
            assert bool((below <= value + noise).all() & (value <= above + noise).all())
