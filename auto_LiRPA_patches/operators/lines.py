"""Two lines around an elementwise function, and the backward step through them.

For every element n of a node and every input within its bounds [l, u]

    lower_slope * v + lower_intercept <= f(v) <= upper_slope * v + upper_intercept.

A coefficient A >= 0 takes the lower line, A < 0 the upper one (Zhang et al. 2018,
arXiv 1811.00866, theorem 3.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import sum_bias


class LineStep(ABC):
    """What an activation's backward step needs of its relaxation."""

    @abstractmethod
    def step(self, coeffs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Coefficients ``[S, B, N]`` of the output: those of the input, and a bias ``[S, B]``."""


@dataclass(frozen=True)
class Lines(LineStep):
    """Lines of one node for a set of rows; s is 1 (shared by all rows) or S (one per row).

    Attributes:
        index: ``[F]`` the features relaxed, into the N flattened elements; None = all of them.
        pass_through: ``[B, N]`` exact slope of the features not in `index` (through zero).
        lower_slope, upper_slope: ``[s, B, F]``.
        lower_intercept, upper_intercept: ``[s, B, F]`` or None for zero.
        shift: ``[S, B, F]`` or None: added to the new coefficients. Sound where ``shift . v <= 0``
            for every v the caller admits: the multipliers of split constraints (β-CROWN).
        places: ``[S or 1, B, D]``, each once: the features that ``shift [S, B, D]`` is added to;
            None = all of them. Few are split, and a pass over all costs a dozen times as much.
        constant: ``[S, B]`` or None: added to the bias, with ``shift . v + constant <= 0`` instead.
    """

    index: Tensor | None
    pass_through: Tensor | None
    lower_slope: Tensor
    lower_intercept: Tensor | None
    upper_slope: Tensor
    upper_intercept: Tensor | None
    shift: Tensor | None = None
    constant: Tensor | None = None
    places: Tensor | None = None

    def step(self, coeffs: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `step_through`."""
        return step_through(coeffs, self)

    def features(self, values: Tensor) -> Tensor:
        """``[S, B, N]`` at the features relaxed: ``[S, B, F]``."""
        return values if self.index is None else values.index_select(2, self.index)

    def put(self, values: Tensor, relaxed: Tensor) -> Tensor:
        """``values [S, B, N]`` through the exact slopes, those relaxed being ``[S, B, F]``."""
        if self.index is None:
            return relaxed
        if self.pass_through is None:
            raise ValueError("lines over some features need the slope of the others")
        return (values * self.pass_through).index_copy_(2, self.index, relaxed)


def step_through(coeffs: Tensor, lines: Lines) -> tuple[Tensor, Tensor | None]:
    """Backward step of ``coeffs [S, B, N]`` through `lines`: new coefficients and bias ``[S, B]``.

    Claim: ``coeffs . f(v) >= new . v + bias`` for all v within the bounds behind `lines` (and with
    ``shift . v + constant <= 0``).
    """
    if not torch.is_grad_enabled():
        # Without a graph to make, the detour through autograd only takes time.
        return _through(coeffs, lines)
    shift = lines.shift
    if shift is not None and lines.places is not None:
        every = shift.new_zeros(*shift.shape[:2], lines.lower_slope.shape[-1])
        shift = every.scatter(2, lines.places.expand_as(shift), shift)
    below, bias = _LinesStep.apply(
        coeffs,
        lines.lower_slope,
        lines.lower_intercept,
        lines.upper_slope,
        lines.upper_intercept,
        shift,
        lines.index,
        lines.pass_through,
    )
    return below, sum_bias([bias, lines.constant])


@dataclass(frozen=True)
class _Taken:
    """The line that each coefficient takes: the lower one where it is positive.

    Attributes:
        coeffs: ``[S, B, F]`` of the outputs.
        slope: ``[S, B, F]``.
        intercept: ``[S, B, F]`` or None for zero.
    """

    coeffs: Tensor
    slope: Tensor
    intercept: Tensor | None


def _stepped(coeffs: Tensor, lines: Lines) -> tuple[Tensor, Tensor | None, _Taken]:
    """`step_through` without a gradient, and the lines it took.

    Each line is chosen once, by weights 0 and 1, between which `lerp` is exact; the way down, the
    way up and the bias then cost one pass each.
    """
    relaxed = lines.features(coeffs)
    is_lower = torch.ops.aten.threshold_backward(relaxed.new_ones(()), relaxed, 0.0)
    slope = torch.lerp(lines.upper_slope, lines.lower_slope, is_lower)
    intercept = _chosen(lines.upper_intercept, lines.lower_intercept, is_lower)
    through = _shifted(relaxed * slope, lines)
    own = None
    if intercept is not None:
        own = torch.mul(relaxed, intercept, out=is_lower).sum(-1)
    bias = sum_bias([own, lines.constant])
    return lines.put(coeffs, through), bias, _Taken(relaxed, slope, intercept)


def _through(coeffs: Tensor, lines: Lines) -> tuple[Tensor, Tensor | None]:
    """`step_through` without a gradient.

    In as little fresh memory as can be: a tile of input boxes is as large as the cache.
    """
    relaxed = lines.features(coeffs)
    through, negative = relaxed.clamp(min=0), relaxed.clamp(max=0)
    above = _dot(through, lines.lower_intercept)
    through = through.mul_(lines.lower_slope).addcmul_(negative, lines.upper_slope)
    below = None
    if lines.upper_intercept is not None:
        below = negative.mul_(lines.upper_intercept).sum(-1)
    bias = sum_bias([above, below, lines.constant])
    return lines.put(coeffs, _shifted(through, lines)), bias


def _shifted(through: Tensor, lines: Lines) -> Tensor:
    """`through` with the multipliers of split constraints added in place."""
    if lines.shift is None:
        return through
    if lines.places is None:
        return through.add_(lines.shift)
    places = lines.places
    if places.shape != lines.shift.shape:
        places = places.expand_as(lines.shift)
    return through.scatter_add_(2, places, lines.shift)


def _chosen(upper: Tensor | None, lower: Tensor | None, is_lower: Tensor) -> Tensor | None:
    """`lower` where `is_lower` is 1 and `upper` where it is 0; None stands for zero."""
    if upper is None:
        return None if lower is None else lower * is_lower
    if lower is None:
        return torch.addcmul(upper, upper, is_lower, value=-1)
    return torch.lerp(upper, lower, is_lower)


class TakenLines(LineStep):
    """Lines, and which of them a backward pass took; there is no gradient through the step.

    With A the coefficients of the outputs, the bound is attained where each element lies on its
    lower line (A > 0) or its upper one. `value` goes back up from there, and gives the gradient of
    the bound: with v the inputs' values there, that in the lower slopes is ``max(A, 0) v``, and
    that in `shift` is v.

    Attributes:
        lines: the two lines of each element.
    """

    def __init__(self, lines: Lines) -> None:
        """Nothing is taken before the step."""
        self.lines = lines
        self._taken: _Taken | None = None

    def step(self, coeffs: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `step_through`; keeps the coefficients and the lines they took."""
        below, bias, self._taken = _stepped(coeffs, self.lines)
        return below, bias

    def value(self, inputs: Tensor) -> Tensor:
        """The outputs ``[S, B, N]`` on the lines taken, for ``inputs [S, B, N]``."""
        taken = self._after_step()
        own = self.lines.features(inputs)
        if taken.intercept is None:
            return self.lines.put(inputs, own * taken.slope)
        return self.lines.put(inputs, torch.addcmul(taken.intercept, own, taken.slope))

    def in_lower_slope(self, inputs: Tensor) -> Tensor:
        """The bound's gradient ``[S, B, F]`` in the lower slopes, for ``inputs [S, B, F]``."""
        return self._after_step().coeffs.clamp(min=0).mul_(inputs)

    def _after_step(self) -> _Taken:
        if self._taken is None:
            raise ValueError("no line is taken before the backward step")
        return self._taken


class SplitLines(LineStep):
    """A ReLU's lines with one more neuron split in some boxes: exact there, slope 0 or 1.

    Attributes:
        lines: of the ReLU before the split.
        boxes: ``[n]``, those with a split; each once, or once with each of `rows`.
        places: ``[n]``, the neuron's place among the relaxed features.
        slopes: ``[n]``, 1 for z >= 0 and 0 for z <= 0.
        rows: ``[n]``, the rows for which the split holds, of lines that all rows share; None = all.
    """

    def __init__(
        self,
        lines: Lines,
        boxes: Tensor,
        places: Tensor,
        slopes: Tensor,
        rows: Tensor | None = None,
    ) -> None:
        """Split neurons which no multiplier or earlier split speaks of."""
        self.lines = lines
        self.boxes = boxes
        self.places = places
        self.slopes = slopes
        self.rows = rows

    def step(self, coeffs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The step through `lines`, corrected for the neurons split; there is no gradient."""
        lines, boxes = self.lines, self.boxes
        below, bias = lines.step(coeffs)
        columns = self.places if lines.index is None else lines.index[self.places]
        rows = slice(None) if self.rows is None else self.rows
        own = coeffs[rows, boxes, columns]
        below[rows, boxes, columns] = own * self.slopes
        if bias is not None and lines.upper_intercept is not None:
            intercept = lines.upper_intercept[:, boxes, self.places]
            bias[rows, boxes] -= own.clamp(max=0) * (
                intercept if self.rows is None else intercept[0]
            )
        return below, bias


class _LinesStep(torch.autograd.Function):
    """Keeps only the relaxed columns of A for the gradient; the line taken is told by their sign.

    Element by element the step is ``A * slope(A)``, so its gradient needs nothing but the slope
    taken. Passes over A-sized tensors are what branch and bound spends its time on beside matrix
    products; each one here is counted. Signs are taken by clamping, never by comparing: on CPUs a
    bool of A's size and a `torch.where` over it take 20 to 30 times as long as a clamp (measured,
    torch 2.14, 4.7 against 0.15 ns per element).
    """

    @staticmethod
    def forward(
        ctx: Any,
        coeffs: Tensor,
        lower_slope: Tensor,
        lower_intercept: Tensor | None,
        upper_slope: Tensor,
        upper_intercept: Tensor | None,
        shift: Tensor | None,
        index: Tensor | None,
        pass_through: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        relaxed = coeffs if index is None else coeffs.index_select(2, index)
        positive, negative = relaxed.clamp(min=0), relaxed.clamp(max=0)
        bias = sum_bias([_dot(positive, lower_intercept), _dot(negative, upper_intercept)])
        through = positive.mul_(lower_slope).addcmul_(negative, upper_slope)
        if shift is not None:
            through.add_(shift)
        if index is None:
            below = through
        else:
            if pass_through is None:
                raise ValueError("lines over some features need the slope of the others")
            below = coeffs * pass_through
            below.index_copy_(2, index, through)
        ctx.index = index
        ctx.save_for_backward(
            relaxed, lower_slope, lower_intercept, upper_slope, upper_intercept, pass_through
        )
        return below, bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_below, grad_bias = grads
        relaxed, lower_slope, lower_intercept, upper_slope, upper_intercept, pass_through = (
            ctx.saved_tensors
        )
        index = ctx.index
        grad_through = grad_below if index is None else grad_below.index_select(2, index)
        grad_bias = None if grad_bias is None else grad_bias.unsqueeze(-1)
        need = ctx.needs_input_grad
        grads_out: list[Tensor | None] = [None] * 8
        if need[0]:
            upward = _line_gradient(grad_through, grad_bias, lower_slope, lower_intercept)
            downward = _line_gradient(grad_through, grad_bias, upper_slope, upper_intercept)
            # downward + (upward - downward) where A > 0, without a mask.
            upward.sub_(downward)
            grad_relaxed = downward.add_(torch.ops.aten.threshold_backward(upward, relaxed, 0.0))
            if index is None:
                grads_out[0] = grad_relaxed
            else:
                grads_out[0] = (grad_below * pass_through).index_copy_(2, index, grad_relaxed)
        if need[1] or need[2]:
            positive = relaxed.clamp(min=0)
            if need[1]:
                grads_out[1] = _reduce_rows(grad_through * positive, lower_slope)
            if need[2] and lower_intercept is not None and grad_bias is not None:
                grads_out[2] = _reduce_rows(grad_bias * positive, lower_intercept)
        if need[3] or need[4]:
            negative = relaxed.clamp(max=0)
            if need[3]:
                grads_out[3] = _reduce_rows(grad_through * negative, upper_slope)
            if need[4] and upper_intercept is not None and grad_bias is not None:
                grads_out[4] = _reduce_rows(grad_bias * negative, upper_intercept)
        if need[5]:
            grads_out[5] = grad_through
        return tuple(grads_out)


def _line_gradient(
    grad_through: Tensor, grad_bias: Tensor | None, slope: Tensor, intercept: Tensor | None
) -> Tensor:
    """Gradient of one coefficient as long as it meets this line, a new tensor."""
    gradient = grad_through * slope
    if intercept is not None and grad_bias is not None:
        gradient.addcmul_(grad_bias, intercept)
    return gradient


def _dot(coeffs: Tensor, intercept: Tensor | None) -> Tensor | None:
    return None if intercept is None else (coeffs * intercept).sum(-1)


def _reduce_rows(gradient: Tensor, like: Tensor) -> Tensor:
    """Adjoint of sharing one line among all rows."""
    return gradient.sum(0, keepdim=True) if like.shape[0] == 1 != gradient.shape[0] else gradient
