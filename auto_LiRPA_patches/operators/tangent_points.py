"""Where a tangent of the sigmoid, drawn left of zero, meets the curve again at a given u > 0.

Claim: for every u and every v <= u, the tangent at the point returned lies below f at v.

d*(u) is smooth and falls from 0 like -u / 2, then like -log u, so it is tabulated over
t = log(1 + u), where its second derivative is below 1: linear interpolation errs by less than
step^2 / 8. What is taken off the result is more than that.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_BISECTIONS = 60
_STEPS_PER_UNIT = 1024
_RANGE = 14.0
# Beyond u = exp(_RANGE) the tangent at -log(1 + u) ends within 1e-4, relative, of f = 1.
_BEYOND = 1e-4
_ERROR = 1.0 / (8 * _STEPS_PER_UNIT**2)


def furthest_tangent(lower: Tensor, upper: Tensor, steepness: float) -> Tensor:
    """d* for ``f(x) = sigmoid(steepness x)`` over ``[lower, upper]``, any shape, same dtype.

    Args:
        lower, upper: bounds; an upper bound that is not a number gives no number.
        steepness: > 0.

    Returns:
        The right-most point of ``[lower, upper]`` whose tangent stays below f up to `upper`, less
        at most 1e-12 for float64 bounds and 1e-6 for float32 (1e-4 for an upper bound above a
        million); `lower` where there is none. Not much less than that: left of it, the chord
        is the line to take, and would cross f if the point were misjudged.
    """
    end = upper.double() * steepness
    inside = end.clamp(min=0)
    table = _table(upper.device)
    place = inside.log1p().mul_(_STEPS_PER_UNIT)
    index = place.clamp(max=table.numel() - 2).nan_to_num(nan=0.0).floor()
    left = index.to(torch.int64)
    begin = table.take(left)
    point = begin + (place - index) * (table.take(left + 1) - begin)
    if upper.dtype == torch.float64:
        point = _polished(point, inside) - 1e-12
    else:
        point = point - _ERROR * (1 + inside.clamp(max=1)) - 2e-7 * point.abs()
    point = torch.where(place > table.numel() - 1, -inside.log1p() - _BEYOND, point)
    # -u is always sound: its derivative is the smallest of [-u, u].
    furthest = torch.where(end <= 0, end, torch.maximum(point, -inside)) / steepness
    return torch.maximum(furthest.to(lower.dtype), lower)


def _polished(point: Tensor, end: Tensor) -> Tensor:
    """One Newton step, no longer than what interpolation may have erred by."""
    sigmoid = torch.sigmoid(point)
    slope = sigmoid * (1 - sigmoid)
    run = end - point
    excess = sigmoid + slope * run - torch.sigmoid(end)
    step = excess / (slope * (1 - 2 * sigmoid) * run).clamp(min=1e-300)
    return point - step.clamp(-2 * _ERROR, 2 * _ERROR)


@functools.cache
def _table(device: torch.device) -> Tensor:
    """d* of the sigmoid at ``expm1(k / steps per unit)``, float64, from the sound side."""
    count = int(_RANGE * _STEPS_PER_UNIT) + 1
    end = torch.expm1(torch.arange(count, dtype=torch.float64) / _STEPS_PER_UNIT)
    sound, unsound, target = -end, torch.zeros_like(end), torch.sigmoid(end)
    for _ in range(_BISECTIONS):
        middle = (sound + unsound) / 2
        sigmoid = torch.sigmoid(middle)
        below = sigmoid + sigmoid * (1 - sigmoid) * (end - middle) <= target
        sound, unsound = torch.where(below, middle, sound), torch.where(below, unsound, middle)
    return sound.to(device)
