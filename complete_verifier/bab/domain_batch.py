"""Subproblems outside the pool: one tensor per attribute, no object per subproblem."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class DomainBatch:
    """B subproblems outside the pool.

    Attributes:
        clause: ``[B]`` int64, the open clause a subproblem belongs to.
        path: ``[B]`` int64, an id derived from the split path alone.
        depth: ``[B]`` int64, number of splits.
        splits: ``[B, D]`` int32; ``+(t + 1)`` or ``-(t + 1)`` for feature t split to that side, 0
            behind the last split.
        points: ``[B, D]`` where: ``z >= point`` or ``z <= point``.
        betas: ``[B, S, D]`` multipliers of the splits.
        alphas: ``[B, S, KT]`` slopes of all features.
        ranges: ``[B, 2, T]`` lower and upper bounds of the features over the subproblem; T = 0
            where the root's serve all subproblems.
        margin: ``[B]`` float64: best lower bound minus threshold over the clause's rows.
    """

    clause: Tensor
    path: Tensor
    depth: Tensor
    splits: Tensor
    points: Tensor
    betas: Tensor
    alphas: Tensor
    ranges: Tensor
    margin: Tensor

    @property
    def count(self) -> int:
        """Number of subproblems B."""
        return int(self.clause.shape[0])

    def select(self, index: Tensor) -> DomainBatch:
        """The subproblems at ``index`` (positions or a mask)."""
        return DomainBatch(*(getattr(self, name)[index] for name in _FIELDS))

    def first(self, count: int) -> DomainBatch:
        """A view of the first so many."""
        return DomainBatch(*(tensor[:count] for tensor in self.tensors))

    def split(self, size: int) -> list[DomainBatch]:
        """Views of `size` subproblems each, the last of what is left; of none, one of none."""
        pieces = zip(*(tensor.split(size) for tensor in self.tensors), strict=True)
        return [DomainBatch(*piece) for piece in pieces]

    def widen(self, depth: int) -> DomainBatch:
        """The same with room for `depth` splits each, or more."""
        missing = depth - self.splits.shape[1]
        if missing <= 0:
            return self
        pad = torch.nn.functional.pad
        deep = {name: pad(getattr(self, name), (0, missing)) for name in _DEEP}
        return replace(self, **deep)

    def fitted(self, depth: int) -> DomainBatch:
        """The same with room for exactly `depth` splits; none of them has more."""
        if depth >= self.width:
            return self.widen(depth)
        return replace(self, **{name: getattr(self, name)[..., :depth] for name in _DEEP})

    @property
    def width(self) -> int:
        """Splits there is room for, D."""
        return int(self.splits.shape[1])

    @property
    def bytes_each(self) -> int:
        """Bytes of one subproblem's tensors."""
        return sum(math.prod(t.shape[1:]) * t.element_size() for t in self.tensors)

    @property
    def tensors(self) -> list[Tensor]:
        """All attributes, in order."""
        return [getattr(self, name) for name in _FIELDS]

    def rebuilt(self, tensors: list[Tensor]) -> DomainBatch:
        """Subproblems like these with other values, `tensors` as in `tensors`."""
        return DomainBatch(*tensors)

    def joined(self, other: DomainBatch) -> DomainBatch:
        """These subproblems, then others."""
        return DomainBatch.concatenate([self, other])

    @property
    def fingerprint(self) -> int:
        """A number made of what each subproblem is: clause, path, splits and the margin's bits.

        Equal for equal sets, in whatever order and with however much room; a sum modulo 2^64, so
        that ranks can add theirs.
        """
        column = (2 * torch.arange(self.width, device=self.path.device) + 1) * _ODD
        points = self.points.view(torch.int32 if self.points.element_size() == 4 else torch.int64)
        mixed = self.path ^ (self.clause * _ODD) ^ (self.margin.view(torch.int64) * _ODD)
        mixed = mixed + (self.splits * column).sum(dim=1) + (points * (column ^ _ODD)).sum(dim=1)
        mixed = (mixed ^ (mixed >> 29)) * _ODD
        return int(((mixed ^ (mixed >> 32)) * _ODD).sum()) % MODULUS

    @staticmethod
    def concatenate(batches: list[DomainBatch]) -> DomainBatch:
        """All subproblems of the given batches, in order; one batch is returned as it is."""
        if len(batches) == 1:
            return batches[0]
        depth = max(batch.splits.shape[1] for batch in batches)
        wide = [batch.widen(depth) for batch in batches]
        return DomainBatch(*(torch.cat([getattr(b, name) for b in wide]) for name in _FIELDS))


_DEEP = ("splits", "points", "betas")
_FIELDS = ("clause", "path", "depth", *_DEEP, "alphas", "ranges", "margin")


_ODD = 6364136223846793005
# Fingerprints are sums modulo this.
MODULUS = 1 << 64
