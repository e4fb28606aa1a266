"""Where a feature is split, and the children's α.

A feature with a kink is split there. Any other is split inside the interval its earlier splits left
it: in the middle (`bab.branching.nonlinear_split.branching_point_method: uniform`), or where the
two children's relaxations together enclose the least area (`opt`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.children import child
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import FeatureSpan

Locate = Callable[[Activation, Tensor, Tensor], Tensor]
"""Where to split elements of an activation over ``[lower, upper]``, each ``[n]``: ``[n]``."""


def middle(operator: Activation, lower: Tensor, upper: Tensor) -> Tensor:
    """The middle of each interval."""
    return lower + (upper - lower) / 2


def least_area(operator: Activation, lower: Tensor, upper: Tensor) -> Tensor:
    """The point, of eighths of the interval and zero, that leaves the least area between lines."""
    shares = torch.arange(1, 8, dtype=lower.dtype, device=lower.device) / 8
    tried = lower + shares.unsqueeze(1) * (upper - lower)
    tried = torch.cat([tried, tried.new_zeros(1, tried.shape[1]).clamp(tried[0], tried[-1])])
    below = _area(operator, lower.expand_as(tried), tried)
    above = _area(operator, tried, upper.expand_as(tried))
    best = (below + above).nan_to_num(nan=torch.inf).argmin(dim=0)
    return tried.gather(0, best.unsqueeze(0)).squeeze(0)


LOCATE: dict[str, Locate] = {"uniform": middle, "opt": least_area}
"""By `bab.branching.nonlinear_split.branching_point_method`."""


class Splitter:
    """Splits the subproblems of one batch."""

    def __init__(self, bounding: Bounding, batch: DomainBatch, locate: Locate) -> None:
        self._features = bounding.features
        self._locate = locate
        self._range: tuple[Tensor, Tensor] | None = None
        cuts = bounding.cuts(batch)
        if cuts is not None:
            lower, upper = bounding.features.within(cuts, bounding.ranges(batch))
            self._range = lower.cpu(), upper.cpu()

    def child(self, parents: DomainBatch, feature: Tensor, side: Tensor) -> DomainBatch:
        """Every subproblem of the batch, or of descendants in its order, with one more split.

        Args:
            parents: the batch itself, or children of it that are not split at `feature` yet.
            feature: ``[B]``.
            side: ``[B]``, +1 for z >= p, -1 for z <= p; both children of a feature get the same p.
        """
        if self._range is None:
            return child(parents, feature, side)
        lower, upper = (end.gather(1, feature.unsqueeze(1)).squeeze(1) for end in self._range)
        point = torch.zeros_like(lower)
        alphas = parents.alphas.clone()
        for span in self._features.spans:
            own = ((feature >= span.offset) & (feature < span.stop)).nonzero().squeeze(1)
            operator = self._features.graph.nodes[span.activation].operator
            if span.kink is not None or not own.numel() or not isinstance(operator, Activation):
                continue
            before = Interval(lower[own], upper[own])
            point[own] = self._locate(operator, before.lower, before.upper)
            above = side[own] > 0
            after = Interval(
                torch.where(above, point[own], before.lower),
                torch.where(above, before.upper, point[own]),
            )
            held = span.is_own(feature[own])
            own, before, after = own[held], _at(before, held), _at(after, held)
            columns = _columns(span, feature[own])
            old = alphas[own].gather(2, columns.expand(-1, alphas.shape[1], -1))
            new = operator.carry_alpha(old.movedim(2, 0), _column(before), _column(after))
            alphas[own] = alphas[own].scatter(
                2, columns.expand(-1, alphas.shape[1], -1), new.movedim(0, 2)
            )
        return replace(child(parents, feature, side, point), alphas=alphas)


def _columns(span: FeatureSpan, feature: Tensor) -> Tensor:
    """``[n, 1, K]``: where the α of ``feature [n]`` are in a table ``[..., A]``."""
    kinds = torch.arange(span.kinds) * span.width + span.alpha_offset
    return (kinds + (feature - span.own.start).unsqueeze(1)).unsqueeze(1)


def _at(bounds: Interval, chosen: Tensor) -> Interval:
    return Interval(bounds.lower[chosen], bounds.upper[chosen])


def _column(bounds: Interval) -> Interval:
    return Interval(bounds.lower.unsqueeze(1), bounds.upper.unsqueeze(1))


def _area(operator: Activation, lower: Tensor, upper: Tensor) -> Tensor:
    """Area between the two lines of each interval, any shape."""
    box = Interval(lower.reshape(1, -1), upper.reshape(1, -1))
    lines = operator.lines(operator.relax(box, None), None)
    height = (lines.upper_slope - lines.lower_slope)[0] * box.center
    for intercept, sign in ((lines.upper_intercept, 1.0), (lines.lower_intercept, -1.0)):
        if intercept is not None:
            height = height + sign * intercept[0]
    return (height * (box.upper - box.lower)).view(lower.shape)
