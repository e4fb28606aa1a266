"""Functions that are constant between jumps: the step from 0 to 1, and floor.

Where no jump lies between the bounds of the argument, the value is one number, exactly. So much
hangs on where the bounds lie, and so little does it matter how they were rounded elsewhere, that
they are moved outwards first: by eight units in the last place of what was added up for them.

Elsewhere each side has two lines, and α in [0, 1] says how they are mixed: the horizontal one
through the value at the bound, and a slanted one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation, Relaxation
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines
from auto_LiRPA_patches.sharding.weights import WeightSource

_UNITS = 8
# A jump this close to a bound, relative to the width, gets no slanted line: it would be too steep.
_CLOSE = 1e-3
# Floor tells nothing of larger numbers: there 32-bit integers end, which casts make of them.
_LARGEST = 2.0**31


@dataclass(frozen=True)
class JumpRelaxation(Relaxation):
    """What lines start from, each ``[B, N]``.

    Attributes:
        lower, upper: of the argument, moved outwards.
        least, most: of the value.
    """

    lower: Tensor
    upper: Tensor
    least: Tensor
    most: Tensor


@dataclass(frozen=True)
class Jumps(Activation):
    """Common part; subclasses say what the values at the bounds and the slanted lines are."""

    @property
    @abstractmethod
    def size(self) -> float:
        """The largest constant that the argument was made with."""

    @abstractmethod
    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The least and the greatest value over ``[lower, upper]``; a NaN tells nothing."""

    @abstractmethod
    def slanted(self, own: JumpRelaxation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Slope and intercept of a line below and of one above, ``[B, N]`` each."""

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        # An attack asks for the gradient, which is zero where there is one.
        return self.function(inputs[0]).detach() + 0.0 * inputs[0]

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        return Interval(*self.ends(*self._outwards(inputs[0])))

    def unstable(self, bounds: Interval) -> Tensor:
        return torch.ones(bounds.lower.shape[1], dtype=torch.bool, device=bounds.lower.device)

    def relax(self, bounds: Interval, features: Tensor | None) -> JumpRelaxation:
        if features is not None and features.numel() != bounds.lower.shape[1]:
            raise ValueError(f"{self.name}: every element of a function with jumps is relaxed")
        lower, upper = self._outwards(Interval(bounds.lower.detach(), bounds.upper.detach()))
        return JumpRelaxation(None, lower, upper, *self.ends(lower, upper))

    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        return torch.full_like(self._own(relaxation).lower, 0.5).repeat(2, 1, 1)

    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        own = self._own(relaxation)
        below, beneath, above, over = self.slanted(own)
        share = own.lower.new_full((2, 1, 1, 1), 0.5) if alpha is None else alpha
        fixed = own.least == own.most
        zero = torch.zeros_like(below)
        lower = torch.where(fixed, zero, share[0])
        upper = torch.where(fixed, zero, share[1])
        return Lines(
            None,
            None,
            lower * below,
            own.least + lower * (beneath - own.least),
            upper * above,
            own.most + upper * (over - own.most),
        )

    def _outwards(self, bounds: Interval) -> tuple[Tensor, Tensor]:
        largest = torch.maximum(bounds.lower.abs(), bounds.upper.abs()) + 2 * self.size
        noise = _UNITS * torch.finfo(largest.dtype).eps * largest
        return bounds.lower - noise, bounds.upper + noise

    def _own(self, relaxation: Relaxation) -> JumpRelaxation:
        if not isinstance(relaxation, JumpRelaxation):
            raise TypeError(f"{self.name}: expected a relaxation of a function with jumps")
        return relaxation


@dataclass(frozen=True)
class UnitStep(Jumps):
    """``y = 1 where x > 0, else 0``.

    Over ``l < 0 < u`` it lies above ``x / u`` and below ``1 - x / l``.

    Attributes:
        threshold: the largest constant in absolute value that the value was compared with.
    """

    threshold: float = 0.0

    @property
    def size(self) -> float:
        return self.threshold

    def function(self, value: Tensor) -> Tensor:
        return (value > 0).to(value.dtype)

    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        return (lower > 0).to(lower.dtype), (~(upper <= 0)).to(upper.dtype)

    def slanted(self, own: JumpRelaxation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        least = _CLOSE * (own.upper - own.lower)
        zero, one = torch.zeros_like(own.lower), torch.ones_like(own.lower)
        below = torch.where(own.upper > least, 1 / own.upper.clamp(min=1e-30), zero)
        above = torch.where(-own.lower > least, 1 / (-own.lower).clamp(min=1e-30), zero)
        return below, zero, above, one


@dataclass(frozen=True)
class Floor(Jumps):
    """``y = floor(x)``, which lies between ``x - 1`` and ``x``."""

    @property
    def size(self) -> float:
        return 0.0

    def function(self, value: Tensor) -> Tensor:
        return torch.floor(value)

    def ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        inside = (lower > -_LARGEST) & (upper < _LARGEST)
        infinity = torch.full_like(lower, torch.inf)
        return (
            torch.where(inside, torch.floor(lower), -infinity),
            torch.where(inside, torch.floor(upper), infinity),
        )

    def slanted(self, own: JumpRelaxation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        one = torch.ones_like(own.lower)
        return one, -one, one, torch.zeros_like(one)
