"""Splits at points: which interval they leave each feature, as tables over all features.

A feature may be split any number of times; of its splits to one side only the tightest says
anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.point_splits import PointSplits
from complete_verifier.bab.domain_batch import DomainBatch


@dataclass(frozen=True)
class Cuts:
    """``lower <= z <= upper`` for every feature of B subproblems; infinite where it is not split.

    Attributes:
        lower, upper: ``[B, T]``.
    """

    lower: Tensor
    upper: Tensor

    @staticmethod
    def of(batch: DomainBatch, total: int, like: Tensor) -> Cuts:
        """The cuts of a batch over `total` features, in the dtype and place of `like`."""
        splits = batch.splits.to(like.device).long()
        points = batch.points.to(like)
        places = splits.abs()
        # The last split is followed by zeros, which fall into a column that is left out.
        lower = like.new_full((batch.count, total + 1), -torch.inf)
        lower.scatter_reduce_(1, places, points.masked_fill(splits <= 0, -torch.inf), "amax")
        upper = like.new_full((batch.count, total + 1), torch.inf)
        upper.scatter_reduce_(1, places, points.masked_fill(splits >= 0, torch.inf), "amin")
        return Cuts(lower[:, 1:], upper[:, 1:])

    def constraints(self, start: int, stop: int) -> PointSplits:
        """The constraints on features ``start <= t < stop``."""
        return PointSplits.between(self.lower[:, start:stop], self.upper[:, start:stop])
