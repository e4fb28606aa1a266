"""ReLU: chord above, a line of slope α in [0, 1] through zero below."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation, Relaxation, pick
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines

LOWER_SLOPES = ("adaptive", "same-slope", "zero-lb", "one-lb")


@dataclass(frozen=True)
class ReluRelaxation(Relaxation):
    """ReLU over ``[l, u]``; F features relaxed, the others exact.

    Attributes:
        pass_through: ``[B, N]`` 1 where l >= 0, 0 where u <= 0; None where all are relaxed.
        slope, intercept: ``[1, B, F]`` the upper line (the chord where l < 0 < u).
        default_slope: ``[1, B, F]`` CROWN's lower slope, the exact one of stable neurons.
        settled: whether α holds the exact slopes of stable neurons already.
    """

    pass_through: Tensor | None
    slope: Tensor
    intercept: Tensor
    default_slope: Tensor
    settled: bool = False

    @cached_property
    def stable(self) -> Stable | None:
        """Where α has no say; None where every neuron is open. Not asked without an α.

        A chord so steep or so flat that its slope is rounded to 1 or 0 counts as one of these: as
        a lower line either is sound anywhere.
        """
        # A relaxation may outlive the inference mode in which somebody asks first.
        with torch.inference_mode(False), torch.no_grad():
            slope = self.slope.detach()
            is_open = slope.mul(1 - slope).sign_()
            if is_open.numel() == 0 or bool(is_open.amin() > 0):
                return None
            return Stable(is_open, slope * (1 - is_open))

    def select(self, index: Tensor) -> ReluRelaxation:
        """The same over the boxes ``index [b]``; one that holds for all boxes is returned as is."""
        if self.slope.shape[1] == 1:
            return self
        passed = self.pass_through
        return replace(
            self,
            pass_through=None if passed is None else passed.index_select(0, index),
            slope=self.slope.index_select(1, index),
            intercept=self.intercept.index_select(1, index),
            default_slope=self.default_slope.index_select(1, index),
        )


@dataclass(frozen=True)
class Stable:
    """Neurons that are exact in some box.

    Attributes:
        is_open: ``[1, B, F]`` 1 where l < 0 < u, 0 elsewhere.
        slope: ``[1, B, F]`` the exact slope elsewhere, 0 where l < 0 < u.
    """

    is_open: Tensor
    slope: Tensor


@dataclass(frozen=True)
class Relu(Activation):
    """``y = max(x, 0)``.

    Attributes:
        lower_slope: CROWN's choice of lower slope where l < 0 < u, as in
            `solver.crown.activation_bound_option`: adaptive = 1 if u > -l else 0 (the smaller
            area), same-slope = the chord's, zero-lb, one-lb.
    """

    lower_slope: str = "adaptive"

    @property
    def kink(self) -> float | None:
        return 0.0

    def function(self, value: Tensor) -> Tensor:
        return torch.relu(value)

    def unstable(self, bounds: Interval) -> Tensor:
        lower, upper = bounds.lower, bounds.upper
        if lower.shape[0] == 0:
            return torch.zeros(lower.shape[1], dtype=torch.bool, device=lower.device)
        # Stable where l >= 0 or -u >= 0 in every box; a NaN bound counts as unstable, never as
        # exact. A comparison per box takes three times as long.
        return ~(torch.maximum(lower, -upper).amin(0) >= 0)

    def relax(self, bounds: Interval, features: Tensor | None) -> ReluRelaxation:
        # Arithmetic throughout: a comparison with a selection by mask costs ten times as much, and
        # branch and bound relaxes every layer of every subproblem. NaN bounds stay NaN.
        lower, upper = pick(bounds.lower, features), pick(bounds.upper, features)
        slope = _chord_slope(lower, upper)
        intercept = (lower.clamp(max=0) * slope).neg_()
        default = self._default_slope(lower, upper, slope)
        with torch.no_grad():
            passed = None if features is None else _chord_slope(bounds.lower, bounds.upper)
        return ReluRelaxation(
            features, passed, slope.unsqueeze(0), intercept.unsqueeze(0), default.unsqueeze(0)
        )

    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        return self._own(relaxation).default_slope.detach().clone()

    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        own = self._own(relaxation)
        if alpha is None:
            lower_slope = own.default_slope
        elif own.settled or own.stable is None:
            lower_slope = alpha[0]
        else:
            # Stable in some box: there the neuron is exact, whatever alpha says.
            lower_slope = torch.addcmul(own.stable.slope, alpha[0], own.stable.is_open)
        return Lines(own.index, own.pass_through, lower_slope, None, own.slope, own.intercept)

    def settle(self, relaxation: Relaxation, alpha: Tensor) -> ReluRelaxation:
        """Write the exact slopes of stable neurons into α, so that no step mixes them in again.

        Args:
            alpha: ``[1, S, B, F]``, changed in place. Any in [0, 1] is sound; a stable neuron's
                must stay as it is from here on for its line to be exact.

        Returns:
            The relaxation that takes α as it is, without slopes of its own.
        """
        own = self._own(relaxation)
        if own.stable is not None:
            alpha.clamp_(own.stable.slope, own.stable.slope + own.stable.is_open)
        return replace(own, default_slope=own.slope, settled=True)

    def _default_slope(self, lower: Tensor, upper: Tensor, chord: Tensor) -> Tensor:
        """CROWN's choice where l < 0 < u, the exact slope elsewhere."""
        if self.lower_slope == "same-slope":
            return chord
        with torch.no_grad():
            if self.lower_slope == "adaptive":
                return (upper + lower).sign_().clamp_(min=0)
            if self.lower_slope == "zero-lb":
                return chord.floor()
            return chord.ceil()

    def _own(self, relaxation: Relaxation) -> ReluRelaxation:
        if not isinstance(relaxation, ReluRelaxation):
            raise TypeError(f"{self.name}: expected a ReLU relaxation")
        return relaxation


def _chord_slope(lower: Tensor, upper: Tensor) -> Tensor:
    """Slope of the upper line: ``u / (u - l)`` for l < 0 < u, 1 for l >= 0, 0 for u <= 0.

    Halved first, which changes no bit of a normal number: u - l may overflow where both ends are
    finite, and a chord of slope zero would lie below the function.
    """
    above = upper.clamp(min=0).mul_(0.5)
    width = torch.sub(above, lower.clamp(max=0), alpha=0.5)
    # Only l = u = 0 makes the width zero, and there any slope is exact.
    return above / width.clamp_(min=torch.finfo(upper.dtype).tiny)
