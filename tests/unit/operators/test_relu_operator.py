"""ReLU: the chord above, every slope of [0, 1] below, exact where the sign is known.

A failure means false bounds in practically every network.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines, step_through
from auto_LiRPA_patches.operators.relu import LOWER_SLOPES, Relu
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.activation_checks import assert_encloses, intervals, line_values


def relu(size: int, lower_slope: str = "adaptive") -> Relu:
    return Relu("relu", ((size,),), (size,), lower_slope)


def alphas(count: int, size: int) -> Tensor:
    """``[1, count, 1, size]``: constants 0 ... 1, the last row random per element."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.linspace(0, 1, count - 1)[:, None].expand(-1, size)
    rows = torch.cat([rows, torch.rand(1, size, generator=generator)])
    return rows[None, :, None, :]


@pytest.mark.parametrize("lower_slope", LOWER_SLOPES)
def test_default_lines_enclose_relu(lower_slope: str) -> None:
    box = intervals()
    operator = relu(box.lower.shape[1], lower_slope)
    assert_encloses(operator, operator.lines(operator.relax(box, None), None), box)


@pytest.mark.parametrize("lower_slope", LOWER_SLOPES)
def test_lines_of_every_alpha_enclose_relu(lower_slope: str) -> None:
    box = intervals()
    operator = relu(box.lower.shape[1], lower_slope)
    rows = alphas(7, box.lower.shape[1])
    lines = operator.lines(operator.relax(box, None), rows)
    for row in range(rows.shape[1]):
        assert_encloses(operator, lines, box, row)


@pytest.mark.parametrize("lower_slope", LOWER_SLOPES)
def test_the_initial_alpha_gives_the_default_lines(lower_slope: str) -> None:
    box = intervals()
    operator = relu(box.lower.shape[1], lower_slope)
    relaxation = operator.relax(box, None)
    default = operator.lines(relaxation, None)
    started = operator.lines(relaxation, operator.initial_alpha(relaxation).unsqueeze(1))
    assert torch.equal(default.lower_slope, started.lower_slope)
    assert torch.equal(default.upper_slope, started.upper_slope)


def test_lower_slopes_are_the_ones_named() -> None:
    box = Interval(torch.tensor([[-1.0, -3.0, -1.0]]), torch.tensor([[3.0, 1.0, 1.0]]))
    expected = {
        "adaptive": [1.0, 0.0, 0.0],
        "same-slope": [0.75, 0.25, 0.5],
        "zero-lb": [0.0, 0.0, 0.0],
        "one-lb": [1.0, 1.0, 1.0],
    }
    for name, slopes in expected.items():
        operator = relu(3, name)
        lines = operator.lines(operator.relax(box, None), None)
        torch.testing.assert_close(lines.lower_slope, torch.tensor([[slopes]]))


def test_the_upper_line_is_the_chord_and_touches_at_both_ends() -> None:
    box = Interval(torch.tensor([[-1.0, -3.0, -1e-6, -5e4]]), torch.tensor([[3.0, 0.1, 2.0, 3.0]]))
    operator = relu(4)
    lines = operator.lines(operator.relax(box, None), None)
    for end in (box.lower, box.upper):
        _, above, _ = line_values(lines, end.double())
        torch.testing.assert_close(above, torch.relu(end.double()), rtol=1e-6, atol=1e-6)


def test_elements_of_known_sign_are_exact_for_every_alpha() -> None:
    box = Interval(
        torch.tensor([[0.0, 1.0, -2.0, -2.0, 0.0]]), torch.tensor([[4.0, 1.0, -1, 0, 0]])
    )
    operator = relu(5)
    assert not bool(operator.unstable(box).any())
    relaxation = operator.relax(box, None)
    for alpha in (None, alphas(5, 5)):
        lines = operator.lines(relaxation, alpha)
        assert bool((lines.lower_slope == lines.upper_slope).all())
        assert bool((lines.lower_slope[..., :2] == 1).all())
        assert bool((lines.lower_slope[..., 2:4] == 0).all())
        assert lines.upper_intercept is not None
        assert not bool(lines.upper_intercept.any())


@pytest.mark.parametrize("lower_slope", LOWER_SLOPES)
def test_elements_of_known_sign_are_exact_by_default_beside_open_ones(lower_slope: str) -> None:
    lower = torch.tensor([[0.0, 1.0, -2.0, -2.0, -1.0], [-1.0, -1.0, -1.0, -1.0, -1.0]])
    upper = torch.tensor([[4.0, 1.5, -1.0, 0.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    operator = relu(5, lower_slope)
    lines = operator.lines(operator.relax(Interval(lower, upper), None), None)
    assert lines.lower_slope[0, 0, :4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert lines.upper_slope[0, 0, :4].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_an_alpha_moves_no_element_whose_chord_is_rounded_to_a_stable_slope() -> None:
    """Nearly stable: l < 0 < u, and the chord's slope is 1 or 0 in the number format."""
    box = Interval(torch.tensor([[-1e-30, -1e30]]), torch.tensor([[1.0, 1e-20]]))
    operator = relu(2)
    assert bool(operator.unstable(box).all())
    relaxation = operator.relax(box, None)
    assert relaxation.slope[0, 0, 0] == 1.0 and 0.0 <= relaxation.slope[0, 0, 1] < 1e-44
    lines = operator.lines(relaxation, alphas(5, 2))
    for end in (box.lower.double(), box.upper.double()):
        for row in range(5):
            below, _, _ = line_values(lines, end, row)
            assert bool((below <= torch.relu(end) + 1e-12 * end.abs()).all())


def test_a_relaxation_that_inference_mode_asked_first_serves_a_gradient_later() -> None:
    box = Interval(torch.tensor([[-1.0, 1.0]]), torch.tensor([[2.0, 3.0]]))
    operator = relu(2)
    relaxation = operator.relax(box, None)
    alpha = torch.full((1, 1, 1, 2), 0.5)
    with torch.inference_mode():
        operator.lines(relaxation, alpha)
    alpha.requires_grad_()
    operator.lines(relaxation, alpha).lower_slope.sum().backward()
    assert alpha.grad is not None and alpha.grad.flatten().tolist() == [1.0, 0.0]


def test_an_element_is_unstable_if_it_is_in_some_box() -> None:
    lower = torch.tensor([[-1.0, 1.0, -2.0], [0.0, 2.0, -3.0]])
    upper = torch.tensor([[1.0, 2.0, -1.0], [1.0, 3.0, 0.0]])
    assert relu(3).unstable(Interval(lower, upper)).tolist() == [True, False, False]


def test_a_bound_that_is_not_a_number_counts_as_unstable() -> None:
    lower, upper = torch.tensor([[torch.nan, -1.0]]), torch.tensor([[1.0, torch.nan]])
    assert bool(relu(2).unstable(Interval(lower, upper)).all())
    lower, upper = torch.tensor([[1.0], [torch.nan]]), torch.tensor([[2.0], [torch.nan]])
    assert bool(relu(1).unstable(Interval(lower, upper)).all())


def test_of_no_box_no_element_is_unstable() -> None:
    assert relu(2).unstable(Interval(torch.ones(0, 2), torch.ones(0, 2))).tolist() == [False, False]


def test_an_interval_as_wide_as_the_number_format_is_enclosed() -> None:
    """upper - lower overflows while both ends are finite; a chord of slope 0 would be below."""
    largest = 3.0e38
    box = Interval(torch.tensor([[-largest, -1e38]]), torch.tensor([[largest, 3.3e38]]))
    operator = relu(2)
    lines = operator.lines(operator.relax(box, None), None)
    _, above, slack = line_values(lines, box.upper.double())
    assert bool((above >= box.upper.double() - slack).all())


@pytest.mark.parametrize(("low", "high"), [(-torch.inf, 1.0), (-1.0, torch.inf), (-torch.inf,) * 2])
def test_an_infinite_bound_gives_no_finite_line(low: float, high: float) -> None:
    high = torch.inf if low == high else high
    operator = relu(1)
    box = Interval(torch.tensor([[low]]), torch.tensor([[high]]))
    lines = operator.lines(operator.relax(box, None), None)
    coeffs = -torch.ones(1, 1, 1)
    below, bias = step_through(coeffs, lines)
    assert bias is not None
    assert not bool(torch.isfinite(below + bias.unsqueeze(-1)).all())


@pytest.mark.parametrize("features", [None, [0, 2, 3]])
@pytest.mark.parametrize("with_alpha", [False, True])
def test_backward_step_is_a_lower_bound(features: list[int] | None, with_alpha: bool) -> None:
    torch.manual_seed(23)
    lower = torch.tensor([[-1.0, 0.5, -2.0, -0.1, -3.0], [-2.0, 0.0, -1.0, 0.2, -2.0]]).double()
    upper = torch.tensor([[2.0, 1.5, 1.0, 0.1, -1.0], [1.0, 2.0, 0.5, 0.4, 0.0]]).double()
    box = Interval(lower, upper)
    operator = relu(5)
    index = None if features is None else torch.tensor(features)
    relaxation = operator.relax(box, index)
    width = 5 if features is None else len(features)
    alpha = torch.rand(1, 4, 2, width).double() if with_alpha else None
    coeffs = torch.randn(4, 2, 5).double()
    (below,), bias = operator.backward(OneRankWeights(), coeffs, operator.lines(relaxation, alpha))
    assert bias is not None
    for _ in range(300):
        value = lower + torch.rand(2, 5).double() * (upper - lower)
        direct = (coeffs * torch.relu(value)).sum(-1)
        assert bool(((below * value).sum(-1) + bias <= direct + 1e-12).all())


def test_relaxing_some_features_equals_relaxing_all() -> None:
    torch.manual_seed(24)
    box = Interval(torch.tensor([[-1.0, 0.5, -2.0, -3.0]]), torch.tensor([[2.0, 1.5, 1.0, -1.0]]))
    operator = relu(4)
    coeffs = torch.randn(3, 1, 4)
    everything = operator.lines(operator.relax(box, None), None)
    some = operator.lines(operator.relax(box, torch.tensor([0, 2])), None)
    none_relaxed = operator.lines(
        operator.relax(
            box.__class__(box.lower[:, 1::2], box.upper[:, 1::2]),
            torch.tensor([], dtype=torch.int64),
        ),
        None,
    )
    for mine, other in zip(
        step_through(coeffs, some), step_through(coeffs, everything), strict=True
    ):
        torch.testing.assert_close(mine, other)
    below, bias = step_through(coeffs[..., 1::2], none_relaxed)
    torch.testing.assert_close(below, coeffs[..., 1::2] * torch.tensor([1.0, 0.0]))
    assert bias is not None
    assert not bool(bias.any())


@pytest.mark.parametrize("lower_slope", ["adaptive", "same-slope"])
@pytest.mark.parametrize("features", [None, [0, 2]])
def test_gradient_in_coefficients_bounds_and_alpha(
    lower_slope: str, features: list[int] | None
) -> None:
    torch.manual_seed(25)
    lower = torch.tensor([[-1.0, 0.5, -2.0, -3.0], [-2.0, 0.6, 0.3, -3.0]]).double()
    upper = torch.tensor([[2.0, 1.5, 1.0, -1.0], [1.0, 2.0, 0.5, -2.0]]).double()
    index = None if features is None else torch.tensor(features)
    operator = relu(4, lower_slope)
    coeffs = torch.randn(3, 2, 4).double()
    alpha = 0.2 + 0.6 * torch.rand(1, 3, 2, 4 if features is None else 2).double()

    def step(rows: Tensor, low: Tensor, high: Tensor, *slope: Tensor) -> tuple[Tensor, Tensor]:
        relaxation = operator.relax(Interval(low, high), index)
        below, bias = step_through(rows, operator.lines(relaxation, slope[0] if slope else None))
        assert bias is not None
        return below, bias

    leaves = [leaf.requires_grad_(True) for leaf in (coeffs, lower, upper, alpha)]
    assert torch.autograd.gradcheck(step, leaves)
    assert torch.autograd.gradcheck(step, leaves[:3])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("intercepts", ["none", "upper", "both"])
@pytest.mark.parametrize("features", [None, [3, 0]])
def test_gradient_of_the_step_through_any_lines(
    shared: bool, shifted: bool, intercepts: str, features: list[int] | None
) -> None:
    torch.manual_seed(26)
    rows, batch, size = 3, 2, 4
    width = size if features is None else len(features)
    lead = 1 if shared else rows

    def line() -> Tensor:
        return torch.randn(lead, batch, width, dtype=torch.float64).requires_grad_(True)

    coeffs = torch.randn(rows, batch, size, dtype=torch.float64).requires_grad_(True)
    lower_intercept = line() if intercepts == "both" else None
    upper_intercept = None if intercepts == "none" else line()
    slopes = [line(), line()]
    given = [leaf for leaf in (lower_intercept, upper_intercept) if leaf is not None]
    index = None if features is None else torch.tensor(features)
    through = torch.rand(batch, size, dtype=torch.float64).round()

    shifts = [torch.randn(rows, batch, width, dtype=torch.float64).requires_grad_(True)]

    def step(*leaves: Tensor) -> tuple[Tensor, ...]:
        rest = list(leaves[3:])
        shift = rest.pop() if shifted else None
        high = rest.pop() if upper_intercept is not None else None
        low = rest.pop() if lower_intercept is not None else None
        lines = Lines(index, through, leaves[1], low, leaves[2], high, shift)
        below, bias = step_through(leaves[0], lines)
        return (below,) if bias is None else (below, bias)

    assert torch.autograd.gradcheck(step, (coeffs, *slopes, *given, *(shifts if shifted else ())))


@pytest.mark.parametrize("features", [None, [0, 2]])
def test_a_shift_is_a_lower_bound_where_its_product_with_the_value_is_not_positive(
    features: list[int] | None,
) -> None:
    """Multipliers of split constraints: x >= 0 pays for a negative shift, x <= 0 for a positive."""
    torch.manual_seed(29)
    lower, upper = (
        torch.tensor([[-1.0, -2.0, -1.0]]).double(),
        torch.tensor([[2.0, -1.0, 3.0]]).double(),
    )
    operator = relu(3)
    index = None if features is None else torch.tensor(features)
    lines = operator.lines(operator.relax(Interval(lower, upper), index), None)
    width = 3 if features is None else 2
    side = torch.tensor([[1.0, 0.0, -1.0]]).double()[:, features or slice(None)]
    shift = -torch.rand(4, 1, width).double() * side
    coeffs = torch.randn(4, 1, 3).double()
    below, bias = step_through(coeffs, dataclasses.replace(lines, shift=shift))
    assert bias is not None
    admitted = 0
    for _ in range(400):
        value = lower + torch.rand(1, 3).double() * (upper - lower)
        if value[0, 0] < 0 or value[0, 2] > 0:
            continue
        admitted += 1
        direct = (coeffs * torch.relu(value)).sum(-1)
        assert bool(((below * value).sum(-1) + bias <= direct + 1e-12).all())
    assert admitted > 20
