"""Intervals that activations are tried on, and the check that lines enclose the function.

Shape letters: K intervals, P points in each.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines

_MAGNITUDES = (1e-6, 1e-2, 0.3, 1.0, 3.0, 8.0, 20.0, 100.0, 1e4, 1e6)
_WIDTHS = (0.0, 1e-8, 1e-6, 1e-4, 9e-4, 1.1e-3, 0.1)
_CENTERS = (0.0, 1e-3, -1e-3, 0.5, -0.5, 3.0, -3.0, 10.0, -10.0, 90.0, -90.0, 1e4, -1e4)
PRECISIONS = (torch.float32, torch.float64)


def intervals(precision: torch.dtype = torch.float32) -> Interval:
    """Intervals ``[1, K]``: around zero, one-sided, tiny, points, saturated and huge."""
    pairs = [(-low, high) for low, high in itertools.product(_MAGNITUDES, repeat=2)]
    one_sided = [(low, high) for low, high in itertools.combinations(_MAGNITUDES, 2)]
    pairs += one_sided + [(-high, -low) for low, high in one_sided]
    pairs += [(center - width / 2, center + width / 2) for center in _CENTERS for width in _WIDTHS]
    pairs += [(0.0, high) for high in _MAGNITUDES] + [(-low, 0.0) for low in _MAGNITUDES]
    lower, upper = torch.tensor(pairs, dtype=precision).T
    return Interval(lower.unsqueeze(0), upper.unsqueeze(0))


def points(box: Interval, count: int = 257) -> Tensor:
    """Float64 points ``[P, K]`` of each interval: even, crowded at both ends, and zero."""
    lower, upper = box.lower[0].double(), box.upper[0].double()
    even = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    crowded = torch.logspace(-12, -0.5, 40, dtype=torch.float64)[:, None]
    share = torch.cat([even, crowded, 1 - crowded])
    inside = lower + share * (upper - lower)
    near_zero = torch.linspace(-12, 12, 97, dtype=torch.float64)[:, None].expand(-1, lower.numel())
    return torch.cat([inside, near_zero]).clamp(lower, upper)


def line_values(lines: Lines, at: Tensor, row: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper line ``[P, K]`` of box 0 in float64, and how far rounding may move them.

    The lines' numbers are each a few roundings away from the exact ones: of the slope
    (relative), of f at an end point, and of ``slope * end point``.
    """
    values = []
    unit = torch.finfo(lines.lower_slope.dtype).eps / 2
    slack = torch.zeros(())
    for slope, intercept in (
        (lines.lower_slope, lines.lower_intercept),
        (lines.upper_slope, lines.upper_intercept),
    ):
        own = row if slope.shape[0] > 1 else 0
        rise = slope[own, 0].double() * at
        shift = torch.zeros(()) if intercept is None else intercept[own, 0].double()
        values.append(rise + shift)
        slack = torch.maximum(slack, 8 * unit * (rise.abs() + shift.abs() + 1e-30))
    return values[0], values[1], slack


def assert_encloses(
    operator: Activation, lines: Lines, box: Interval, row: int = 0, largest: float = 0.0
) -> None:
    """Both lines of every interval are on their side of the function, up to rounding.

    Args:
        largest: sup |f| where intercepts are made from values near it, so that their rounding is
            relative to it rather than to the intercept.
    """
    assert lines.index is None
    at = points(box)
    below, above, slack = line_values(lines, at, row)
    value = operator.function(at)
    excess = torch.maximum(below - value, value - above) - slack
    unit = torch.finfo(lines.lower_slope.dtype).eps / 2
    excess = excess - 4 * unit * value.abs().clamp(min=largest)
    worst = int(excess.amax(0).argmax())
    assert float(excess.max()) <= 0, (
        f"over [{float(box.lower[0, worst])!r}, {float(box.upper[0, worst])!r}] a line is on the "
        f"wrong side by {float(excess[:, worst].max()):.3g} beyond rounding"
    )
