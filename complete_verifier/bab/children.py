"""Split subproblems: a child has one more split than its parent."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from complete_verifier.bab.domain_batch import DomainBatch


def child(
    batch: DomainBatch, feature: Tensor, side: Tensor, point: Tensor | None = None
) -> DomainBatch:
    """Every subproblem of a batch with one more split, its multiplier zero.

    Args:
        batch: B subproblems.
        feature, side: ``[B]``, the feature t, and +1 for z >= p or -1 for z <= p.
        point: ``[B]`` p; None = 0.
    """
    split = ((feature + 1) * side).to(torch.int32).unsqueeze(1)
    wide = batch.widen(int(batch.depth.max()) + 1)
    # A 64-bit congruential mix; equal paths give equal ids on every rank and run.
    path = batch.path * 6364136223846793005 + (2 * feature + (side > 0) + 1) * 1442695040888963407
    return replace(
        wide,
        path=path,
        depth=batch.depth + 1,
        splits=wide.splits.scatter(1, batch.depth.unsqueeze(1), split),
        points=wide.points
        if point is None
        else wide.points.scatter(1, batch.depth.unsqueeze(1), point.unsqueeze(1)),
    )
