"""Cut off the parts of a box that a clause's planes exclude.

Each constraint ``c_k . y <= d_k`` of a clause comes with a plane below its left side,
``c_k . y(x) - d_k >= a_k . x + b_k`` over the box. A point that satisfies the clause has all its
planes at or below zero, so what lies beyond one of them need not be searched. A box around what is
left is found input by input; planes of one clause sharpen each other in a few rounds, and may show
together what none shows alone: that nothing is left.

Shape letters: B boxes, I inputs (flat), K constraints, C clauses.

Reference: bounds propagation over linear constraints, as in constraint programming: E. Davis,
Constraint propagation with interval labels, Artificial Intelligence 32 (1987), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

_ROUNDS = 3
# Far above what float64 may round here, far below what matters.
_SLACK = 1e-12
_TINY = 1e-300


@dataclass(frozen=True)
class Planes:
    """Planes below the constraints of B boxes, float64.

    Attributes:
        slopes: ``[B, K, I]``.
        least: ``[B, K]`` each plane's smallest value over its box, what rounding may account for
            taken off; -inf where there is no plane.
        clause_of: ``[K]``.
        one_each: whether clause k has constraint k and no other.
    """

    slopes: Tensor
    least: Tensor
    clause_of: Tensor
    one_each: bool = False


@dataclass(frozen=True)
class Contracted:
    """What is left of B boxes.

    Attributes:
        lower, upper: ``[B, I]`` in the boxes' precision, rounded outwards.
        least: ``[B, K]`` float64, each plane's smallest value over what its clause leaves.
        empty: ``[B, C]`` bool, clauses of which nothing is left.
    """

    lower: Tensor
    upper: Tensor
    least: Tensor
    empty: Tensor


def contract(lower: Tensor, upper: Tensor, planes: Planes, excluded: Tensor) -> Contracted:
    """The boxes without what no clause can use.

    Args:
        lower, upper: ``[B, I]``.
        planes: over these boxes.
        excluded: ``[B, C]`` clauses known to be impossible.

    Returns:
        Boxes inside the given ones that hold every point at which some clause is satisfied. A box
        that no clause needs is left as it is.
    """
    finite = torch.isfinite(planes.slopes).all(dim=2)
    slopes = planes.slopes.masked_fill(~finite.unsqueeze(2), 0.0)
    planes = replace(planes, slopes=slopes, least=planes.least.masked_fill(~finite, -torch.inf))
    largest = torch.maximum(lower.abs(), upper.abs()).double().unsqueeze(1)
    slack = (slopes.abs() * largest).sum(-1) + planes.least.abs().nan_to_num_(posinf=0.0)
    slack = slack.mul_(_SLACK).add_(_TINY**0.5)
    low, high = lower.double().unsqueeze(1), upper.double().unsqueeze(1)
    cut = _cut_once if planes.one_each else _cut_in_rounds
    low, high, least, empty = cut(low, high, planes, slack, excluded)
    kept = ~empty.unsqueeze(2)
    hull_low = torch.where(kept, low, torch.inf).amin(dim=1)
    hull_high = torch.where(kept, high, -torch.inf).amax(dim=1)
    some = ~empty.all(dim=1, keepdim=True)
    return Contracted(
        torch.where(some, _outwards(hull_low, lower, -1), lower),
        torch.where(some, _outwards(hull_high, upper, 1), upper),
        least,
        empty,
    )


_Cut = tuple[Tensor, Tensor, Tensor, Tensor]
"""``[B, C, I]`` lower and upper ends, ``[B, K]`` the planes' smallest values, ``[B, C]`` empty."""


def _cut_in_rounds(low: Tensor, high: Tensor, planes: Planes, slack: Tensor, empty: Tensor) -> _Cut:
    """What every clause leaves of boxes ``[B, 1, I]``; its planes sharpen each other."""
    of, clauses = planes.clause_of, empty.shape[1]
    low, high = low.expand(-1, clauses, -1), high.expand(-1, clauses, -1)
    rising, falling = planes.slopes.clamp(min=0), planes.slopes.clamp(max=0)
    base = planes.least - _corner(rising, falling, low[:, of], high[:, of])
    for _ in range(_ROUNDS):
        own_low, own_high = low[:, of], high[:, of]
        least = base + _corner(rising, falling, own_low, own_high)
        empty = empty | _any(least > slack, of, clauses)
        floor, ceiling = _ends(own_low, own_high, rising, falling, slack - least, slack)
        index = of.view(1, -1, 1).expand_as(ceiling)
        high = high.scatter_reduce(1, index, ceiling, "amin")
        low = low.scatter_reduce(1, index, floor, "amax")
        empty = empty | (low > high).any(dim=2)
    return low, high, least, empty


def _cut_once(low: Tensor, high: Tensor, planes: Planes, slack: Tensor, empty: Tensor) -> _Cut:
    """The same of clauses with one plane each, whose smallest value no cut of its own changes."""
    least = planes.least
    rising, falling = planes.slopes.clamp(min=0), planes.slopes.clamp(max=0)
    floor, ceiling = _ends(low, high, rising, falling, slack - least, slack)
    low, high = torch.maximum(low, floor), torch.minimum(high, ceiling)
    return low, high, least, empty | (least > slack) | (low > high).any(dim=2)


def _ends(
    low: Tensor, high: Tensor, rising: Tensor, falling: Tensor, room: Tensor, slack: Tensor
) -> tuple[Tensor, Tensor]:
    """How far each plane lets each input rise from its corner ``[B, K, I]``; floors, ceilings."""
    room = room.clamp(min=0).add_(slack).unsqueeze(2)
    ceiling = low + room / rising.clamp(min=_TINY)
    floor = high - room / falling.neg().clamp_(min=_TINY)
    return floor, ceiling


def _corner(rising: Tensor, falling: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``min over the box of slopes . x``, ``[B, K]``."""
    return (rising * low + falling * high).sum(-1)


def _any(found: Tensor, clause_of: Tensor, clauses: int) -> Tensor:
    """``[B, K]`` bool -> ``[B, C]``: some constraint of the clause."""
    result = torch.zeros(found.shape[0], clauses, dtype=torch.float64, device=found.device)
    return result.index_add_(1, clause_of, found.double()) > 0


def _outwards(limit: Tensor, old: Tensor, side: int) -> Tensor:
    """A limit in the precision of `old`, moved outwards by a unit but not beyond `old`."""
    rounded = limit.to(old.dtype)
    moved = torch.nextafter(rounded, torch.full_like(old, side * torch.inf))
    return torch.minimum(moved, old) if side > 0 else torch.maximum(moved, old)
