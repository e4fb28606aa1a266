"""Split constraints at points other than zero: z >= p or z <= p for an activation's input z.

For every β >= 0 a bound of ``rows . f(x) - β (z - p)`` is one of ``rows . f(x)`` where z >= p, and
one of ``rows . f(x) - β (p - z)`` where z <= p: β joins the coefficients of z, and ± β p the bias.

Reference: Wang et al. 2021 (arXiv 2103.06624), theorem 3.1, for p = 0; Shi et al. 2024 (arXiv
2405.21063), section 3.1, for any p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_UNITS = 8


@dataclass(frozen=True)
class PointSplits:
    """Constraints on the F relaxed elements of one activation's input in B subproblems.

    Attributes:
        signs: ``[2, B, F]``, -1 where z >= p holds, +1 in the second half where z <= p does, 0
            where there is no such constraint: what β adds to the coefficient of z.
        limits: ``[2, B, F]``, p and -p in the two halves, 0 without a constraint: what β adds to
            the bias.
    """

    signs: Tensor
    limits: Tensor

    @staticmethod
    def between(lower: Tensor, upper: Tensor) -> PointSplits:
        """Constraints ``lower <= z <= upper``, each ``[B, F]``; no constraint where infinite.

        They are stated eight units in the last place wider, so that the rounding of β p, which
        cancels against β z, proves nothing.
        """
        both = torch.stack([lower, -upper])
        present = torch.isfinite(both)
        limits = torch.where(present, both, torch.zeros_like(both))
        limits = limits - _UNITS * torch.finfo(limits.dtype).eps * limits.abs()
        signs = present.to(limits.dtype)
        signs[0].neg_()
        return PointSplits(signs, limits)

    def select(self, index: Tensor) -> PointSplits:
        """The subproblems at `index`."""
        return PointSplits(self.signs.index_select(1, index), self.limits.index_select(1, index))

    def penalty(self, betas: Tensor) -> tuple[Tensor, Tensor]:
        """What multipliers ``[2, S, B, F]`` add: to coefficients ``[S, B, F]``, to bias ``[S, B]``.

        Claim: ``coefficients . z + bias <= 0`` for every z that meets the constraints.
        """
        shift = betas[0] * self.signs[0] + betas[1] * self.signs[1]
        return shift, (betas * self.limits.unsqueeze(1)).sum((0, 3))
