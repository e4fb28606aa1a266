"""ReLU: chord above, a line of slope α in [0, 1] through zero below."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
        default_slope: ``[1, B, F]`` CROWN's lower slope.
        open_mask: ``[1, B, F]`` 1 where l < 0 < u, or None when that holds everywhere.
        closed_slope: ``[1, B, F]`` the exact slope elsewhere, 0 where l < 0 < u; with the mask.
    """

    pass_through: Tensor | None
    slope: Tensor
    intercept: Tensor
    default_slope: Tensor
    open_mask: Tensor | None
    closed_slope: Tensor | None

    def select(self, index: Tensor) -> ReluRelaxation:
        """The same over the boxes ``index [b]``; one that holds for all boxes is returned as is."""
        if self.slope.shape[1] == 1:
            return self

        def chosen(tensor: Tensor | None, dim: int = 1) -> Tensor | None:
            return None if tensor is None else tensor.index_select(dim, index)

        return replace(
            self,
            pass_through=chosen(self.pass_through, 0),
            slope=self.slope.index_select(1, index),
            intercept=self.intercept.index_select(1, index),
            default_slope=self.default_slope.index_select(1, index),
            open_mask=chosen(self.open_mask),
            closed_slope=chosen(self.closed_slope),
        )


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
        # Not (l >= 0) and not (u <= 0): a NaN bound counts as unstable, never as exact.
        stable = (bounds.lower >= 0) | (bounds.upper <= 0)
        return ~stable.all(0)

    def relax(self, bounds: Interval, features: Tensor | None) -> ReluRelaxation:
        # Arithmetic throughout: a comparison with a selection by mask costs ten times as much, and
        # branch and bound relaxes every layer of every subproblem. NaN bounds stay NaN.
        lower, upper = pick(bounds.lower, features), pick(bounds.upper, features)
        slope = _chord_slope(lower, upper)
        intercept = (lower.clamp(max=0) * slope).neg_()
        with torch.no_grad():
            one = upper.new_ones(()).expand_as(upper)
            is_open = torch.ops.aten.threshold_backward(one, upper, 0.0)
            is_open = torch.ops.aten.threshold_backward(is_open, -lower, 0.0)
            pass_through = None
            if features is not None:
                pass_through = _chord_slope(bounds.lower, bounds.upper)
            all_open = bool(is_open.amin() > 0) if is_open.numel() else True
        closed = None if all_open else slope.detach() * (1 - is_open)
        default = self._default_slope(lower, upper, slope)
        if closed is not None:
            default = torch.addcmul(closed, default, is_open)
        return ReluRelaxation(
            features,
            pass_through,
            slope.unsqueeze(0),
            intercept.unsqueeze(0),
            default.unsqueeze(0),
            None if closed is None else is_open.unsqueeze(0),
            None if closed is None else closed.unsqueeze(0),
        )

    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        return self._own(relaxation).default_slope.detach().clone()

    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        own = self._own(relaxation)
        if alpha is None:
            lower_slope = own.default_slope
        elif own.open_mask is None or own.closed_slope is None:
            lower_slope = alpha[0]
        else:
            # Stable in some box: there the neuron is exact, whatever alpha says.
            lower_slope = torch.addcmul(own.closed_slope, alpha[0], own.open_mask)
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
        if own.open_mask is not None and own.closed_slope is not None:
            alpha.clamp_(own.closed_slope, own.closed_slope + own.open_mask)
        return replace(own, default_slope=own.slope, open_mask=None, closed_slope=None)

    def _default_slope(self, lower: Tensor, upper: Tensor, chord: Tensor) -> Tensor:
        if self.lower_slope == "same-slope":
            return chord
        with torch.no_grad():
            if self.lower_slope == "zero-lb":
                return torch.zeros_like(lower)
            if self.lower_slope == "one-lb":
                return torch.ones_like(lower)
            return (upper + lower).sign_().clamp_(min=0)

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
