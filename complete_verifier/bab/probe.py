"""What one split more would make of the bounds of a batch, without a new optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.rows import BatchRows
from auto_LiRPA_patches.engine.subproblems import Subproblems
from auto_LiRPA_patches.operators.lines import Lines, SplitLines
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import FeatureSpan


class ReluProbe:
    """Bounds the children of a batch by backward passes alone, in a network with ReLU only.

    A child differs from its parent in one neuron, so that the parents' relaxations serve all.
    The margins guide the choice of a split; nothing is proven by them.
    """

    def __init__(self, bounding: Bounding, batch: DomainBatch) -> None:
        """Take B subproblems."""
        self._bounding = bounding
        self._count = batch.count
        self._parts = bounding.parts(batch)

    def margins(self, tried: Tensor) -> Tensor:
        """Margins ``[C, 2, B]`` of the children split at ``tried [C, B]``, above and below.

        The margin of a child whose feature its parent cannot split means nothing.
        """
        found, start = [], 0
        for part in self._parts:
            # A last part in tiles repeats the last subproblem.
            boxes = torch.arange(start, start + part.count, device=tried.device)
            found.append(self._of_part(part, tried[:, boxes.clamp(max=self._count - 1)]))
            start += part.count
        return torch.cat(found, dim=1)[:, : self._count].unflatten(0, (-1, 2))

    def _of_part(self, part: DomainBatch, tried: Tensor) -> Tensor:
        """Margins ``[2 C, b]`` of one part's children."""
        bounding, prepared = self._bounding, self._prepared(part)
        # A pass for several children has one row for each: they share the lines of their parent's.
        shared = prepared.problem.rows.shape[0] == 1
        at_once = bounding.passes_at_once(part.count) if shared else 1
        feature = tried.repeat_interleave(2, dim=0)
        slope = tried.new_tensor([1, 0]).repeat(len(tried))
        filled = len(feature)
        if bounding.in_tiles:
            # As many rows in every pass: a child's bits may not depend on how many are tried.
            filled = -(-filled // at_once) * at_once
        every = torch.arange(filled, device=tried.device).clamp(max=len(feature) - 1)
        found: list[Tensor] = []
        for places in every.split(at_once):
            lower = self._lower(prepared, feature[places], slope[places])
            found += [bounding.margin(part, own) for own in lower]
        return torch.stack(found[: len(feature)])

    def _prepared(self, part: DomainBatch) -> _Prepared:
        problem = self._bounding.subproblems(part, self._bounding.signs(part)).packed()
        with torch.no_grad():
            state = problem.relaxations()
            lines = {index: problem.lines(state, index) for index in problem.graph.relaxed}
        return _Prepared(problem, lines)

    def _lower(self, prepared: _Prepared, feature: Tensor, slope: Tensor) -> Tensor:
        """Lower bounds ``[T, S, b]`` of the children split at ``feature [T, b]``; T or S is 1.

        Args:
            slope: ``[T]``, 1 above and 0 below.
        """
        problem, count = prepared.problem, len(feature)
        rows = problem.rows if count == 1 else problem.rows.expand(count, *problem.rows.shape[1:])
        steps = dict(prepared.lines)
        for span in self._bounding.features.spans:
            steps[span.activation] = self._split(steps[span.activation], span, feature, slope)
        with torch.no_grad():
            lower = lower_bounds(
                problem.graph,
                problem.box,
                problem.graph.output,
                BatchRows(rows),
                steps.__getitem__,
            )
        return lower.unflatten(0, (count, -1))

    def _split(self, lines: object, span: FeatureSpan, feature: Tensor, slope: Tensor) -> object:
        """The lines of one activation where `feature` splits some of its neurons."""
        if not isinstance(lines, Lines):
            return lines
        several = len(feature) > 1
        if several and lines.shift is not None:
            lines = replace(lines, shift=lines.shift.expand(len(feature), -1, -1))
        number, boxes = span.is_own(feature).nonzero(as_tuple=True)
        if len(boxes) == 0:
            return lines
        places = feature[number, boxes] - span.own.start
        slopes = slope[number].to(lines.upper_slope.dtype)
        return SplitLines(lines, boxes, places, slopes, number if several else None)


@dataclass(frozen=True)
class _Prepared:
    """Subproblems, and the relaxation of each node that needs one, as they were before a split."""

    problem: Subproblems
    lines: Mapping[int, object]
