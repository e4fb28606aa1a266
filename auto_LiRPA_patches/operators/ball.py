"""A box of inputs of which only those in a ball count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.interval import Interval


@dataclass(frozen=True)
class BallBox(Interval):
    """Inputs in a box and in ``|| weights * (x - middle) ||_norm <= reach``.

    Whoever knows of boxes alone takes it for its box, which only adds inputs: bounds stay sound.

    Attributes:
        middle: ``[1, *shape]``.
        weights: ``[1, *shape]``, above 0.
        reach: at least 0.
        norm: 1 or 2.
    """

    middle: Tensor
    weights: Tensor
    reach: float
    norm: float

    def minimum(self, coeffs: Tensor) -> Tensor:
        """``min over v in the ball of coeffs . v``: ``[S, B, N] -> [S, B]``.

        By Hölder's inequality: ``coeffs . middle - reach * || coeffs / weights ||_dual``, with
        equality for some v (Zhang et al. 2018, arXiv 1811.00866, equation 3).
        """
        dual = torch.inf if self.norm == 1 else 2.0
        spread = torch.linalg.vector_norm(coeffs / self.weights.flatten(), ord=dual, dim=-1)
        return coeffs @ self.middle.flatten() - self.reach * spread
