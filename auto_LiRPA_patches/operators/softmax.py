"""The affine part of softmax.

``softmax(x)_i = exp(x_i) / sum_j exp(x_j) = 1 / sum_j exp(x_j - x_i)``.

On the right each x enters through differences only, in which the backward pass cancels what all
scores have in common, and both nonlinear functions take one variable; on the left two dependent
perturbed values would be multiplied. The difference of an element with itself is exactly zero, so
the sum is at least one and its reciprocal never meets zero. The same form is used by Bonaert et al.
2021 (PLDI, "Fast and precise certification of transformers", section 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Differences(AffineOperator):
    """``y[.., i, j] = x[.., j] - x[.., i]`` on the last axis: ``[.., N] -> [.., N, N]``."""

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        if not absolute:
            return rows.unsqueeze(-2) - rows.unsqueeze(-1)
        both = rows.unsqueeze(-2) + rows.unsqueeze(-1)
        # x_i - x_i is zero whatever x_i is.
        same = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        return both * (1 - same)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return rows.sum(-2) - rows.sum(-1)

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None
