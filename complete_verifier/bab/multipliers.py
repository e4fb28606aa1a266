"""The multipliers β between the pool, one per split, and the engine, one per feature (and side)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features


def spread(features: Features, batch: DomainBatch, like: Tensor) -> dict[int, Tensor]:
    """β per activation: ``[S, B, F]``, or ``[2, S, B, F]`` for both sides where it has no kink.

    Args:
        features: the numbering.
        batch: B subproblems.
        like: gives dtype and device.
    """
    splits = batch.splits.to(like.device).long()
    own = batch.betas.to(like.device).transpose(0, 1)  # [S, B, D]
    places = splits.abs().unsqueeze(0).expand_as(own)
    shape = (*own.shape[:2], features.total + 1)
    if not features.curved:
        table = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return features.split(table.scatter_(2, places, own)[..., 1:])
    sides = []
    for away in (splits <= 0, splits >= 0):
        table = torch.zeros(shape, dtype=like.dtype, device=like.device)
        # Splits to one side share one multiplier: that of the tightest.
        table.scatter_reduce_(2, places, own.masked_fill(away, 0.0), "amax")
        sides.append(features.split(table[..., 1:]))
    above, below = sides
    return {
        span.activation: above[span.activation] + below[span.activation]
        if span.kink is not None
        else torch.stack([above[span.activation], below[span.activation]])
        for span in features.spans
    }


def collect(features: Features, batch: DomainBatch, betas: Mapping[int, Tensor]) -> Tensor:
    """``[B, S, D]``, the multiplier of each split, from `betas` as `spread` gives them.

    An activation without multipliers counts as zero.
    """
    places = batch.splits.long()
    count = batch.betas.shape[1]
    sides = []
    for side in (0, 1) if features.curved else (0,):
        parts = []
        for span in features.spans:
            own = betas.get(span.activation)
            if own is None:
                own = batch.betas.new_zeros(count, batch.count, span.width)
            parts.append(own[side] if own.dim() == 4 else own)
        padded = torch.nn.functional.pad(features.joined(parts), (1, 0))
        index = places.to(padded.device).abs().unsqueeze(0).expand(count, -1, -1)
        sides.append(padded.gather(2, index).transpose(0, 1).to(batch.betas.device))
    if len(sides) == 1:
        return sides[0]
    return torch.where((places > 0).unsqueeze(1), sides[0], sides[1])
