"""What one split more would make of the bounds of a batch, without a new optimisation."""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.subproblems import Subproblems
from auto_LiRPA_patches.operators.lines import Lines, LineStep, SplitLines
from complete_verifier.bab.bounding import Bounding
from complete_verifier.bab.pool import DomainBatch


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
        self._held: tuple[Subproblems, Relaxations] | None = None

    def margins(self, feature: Tensor, side: Tensor) -> Tensor:
        """Margins ``[B]`` of the children split at ``feature [B]`` to ``side [B]``, +1 or -1.

        The margin of a child whose feature its parent cannot split means nothing.
        """
        found, start = [], 0
        for part in self._parts:
            problem, state = self._held or self._prepared(part)
            # A last part in tiles repeats the last subproblem.
            rows = torch.arange(start, start + part.count, device=feature.device)
            rows = rows.clamp(max=self._count - 1)
            lower = self._lower(problem, state, feature[rows], side[rows])
            found.append(self._bounding.margin(part, lower))
            start += part.count
        return torch.cat(found)[: self._count]

    def _prepared(self, part: DomainBatch) -> tuple[Subproblems, Relaxations]:
        problem = self._bounding.subproblems(part, self._bounding.signs(part))
        prepared = problem, problem.relaxations()
        if len(self._parts) == 1:
            self._held = prepared
        return prepared

    def _lower(
        self, problem: Subproblems, state: Relaxations, feature: Tensor, side: Tensor
    ) -> Tensor:
        spans = {span.activation: span for span in self._bounding.features.spans}

        def step(index: int, lines: Lines) -> LineStep:
            span = spans.get(index)
            if span is None:
                return lines
            split = ((feature >= span.offset) & (feature < span.stop)).nonzero().squeeze(1)
            slopes = side[split].clamp(min=0).to(problem.rows.dtype)
            return SplitLines(lines, split, feature[split] - span.offset, slopes)

        with torch.no_grad():
            return problem.lower(state, step=step)
