"""What one split more would make of the bounds of a batch, without a new optimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.rows import BatchRows
from auto_LiRPA_patches.engine.subproblems import Subproblems
from auto_LiRPA_patches.operators.lines import Lines, SplitLines
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.domain_batch import DomainBatch


class ReluProbe:
    """Bounds the children of a batch by one backward pass each, in a network with ReLU only.

    A child differs from its parent in one neuron, so that the parents' relaxations serve all.
    The margins guide the choice of a split; nothing is proven by them.
    """

    def __init__(self, bounding: Bounding, batch: DomainBatch) -> None:
        """Take B subproblems; relaxations are made at first use, and kept if memory holds all."""
        self._bounding = bounding
        self._count = batch.count
        self._parts = bounding.parts(batch)
        self._held: _Prepared | None = None

    def margins(self, feature: Tensor, side: Tensor) -> Tensor:
        """Margins ``[B]`` of the children split at ``feature [B]`` to ``side [B]``, +1 or -1.

        The margin of a child whose feature its parent cannot split means nothing.
        """
        found, start = [], 0
        for part in self._parts:
            prepared = self._held or self._prepared(part)
            # A last part in tiles repeats the last subproblem.
            rows = torch.arange(start, start + part.count, device=feature.device)
            rows = rows.clamp(max=self._count - 1)
            lower = self._lower(prepared, feature[rows], side[rows])
            found.append(self._bounding.margin(part, lower))
            start += part.count
        return torch.cat(found)[: self._count]

    def _prepared(self, part: DomainBatch) -> _Prepared:
        problem = self._bounding.subproblems(part, self._bounding.signs(part)).packed()
        with torch.no_grad():
            state = problem.relaxations()
            lines = {index: problem.lines(state, index) for index in problem.graph.relaxed}
        prepared = _Prepared(problem, lines)
        if len(self._parts) == 1:
            self._held = prepared
        return prepared

    def _lower(self, prepared: _Prepared, feature: Tensor, side: Tensor) -> Tensor:
        problem, steps = prepared.problem, dict(prepared.lines)
        for span in self._bounding.features.spans:
            lines = steps[span.activation]
            split = span.is_own(feature).nonzero().squeeze(1)
            if isinstance(lines, Lines) and len(split):
                slopes = side[split].clamp(min=0).to(problem.rows.dtype)
                places = feature[split] - span.own.start
                steps[span.activation] = SplitLines(lines, split, places, slopes)
        with torch.no_grad():
            return lower_bounds(
                problem.graph,
                problem.box,
                problem.graph.output,
                BatchRows(problem.rows),
                steps.__getitem__,
            )


@dataclass(frozen=True)
class _Prepared:
    """Subproblems, and the relaxation of each node that needs one, as they were before a split."""

    problem: Subproblems
    lines: Mapping[int, object]
