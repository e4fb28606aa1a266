"""What the attack minimises: how far outputs are from satisfying each clause.

Layout: K clauses, R restarts, M rows of the longest clause, O outputs. Shorter clauses are padded
with rows that always hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.settings import LossMode
from complete_verifier.specification import Clause


@dataclass(frozen=True)
class ClauseObjective:
    """The rows `coefficients @ y <= rhs` of K clauses, stacked."""

    coefficients: Tensor  # [K, M, O] float64
    rhs: Tensor  # [K, M] float64
    strict: Tensor  # [K, M] bool, row is `<`
    used: Tensor  # [K, M] bool, row is not padding
    scale: Tensor  # [K, M] float64, 1 / sum |coefficients| of the row

    @staticmethod
    def of(clauses: Sequence[Clause], device: torch.device | None = None) -> ClauseObjective:
        """Stack `clauses` (at least one)."""
        rows = max(1, max(clause.num_rows for clause in clauses))
        num_outputs = clauses[0].num_outputs
        coefficients = np.zeros((len(clauses), rows, num_outputs))
        rhs = np.zeros((len(clauses), rows))
        strict = np.zeros((len(clauses), rows), dtype=bool)
        used = np.zeros((len(clauses), rows), dtype=bool)
        for index, clause in enumerate(clauses):
            count = clause.num_rows
            coefficients[index, :count] = clause.coefficients
            rhs[index, :count] = clause.rhs
            strict[index, :count] = clause.strict
            used[index, :count] = True
        norm = np.abs(coefficients).sum(axis=2)
        scale = 1.0 / np.where(norm > 0, norm, 1.0)
        tensors = (coefficients, rhs, strict, used, scale)
        return ClauseObjective(*(torch.as_tensor(value, device=device) for value in tensors))

    def margins(self, outputs: Tensor) -> Tensor:
        """`coefficients @ y - rhs` for outputs [K, R, O] float64; [K, R, M], <= 0 where it holds.

        Padding rows give -inf.
        """
        margins = torch.bmm(outputs, self.coefficients.transpose(1, 2)) - self.rhs.unsqueeze(1)
        return margins.masked_fill(~self.used.unsqueeze(1), -torch.inf)

    def satisfied(self, margins: Tensor) -> Tensor:
        """[K, R] bool: every row of the restart's own clause holds."""
        strict = self.strict.unsqueeze(1)
        return torch.where(strict, margins < 0, margins <= 0).all(dim=2)

    def loss(self, margins: Tensor, mode: LossMode) -> Tensor:
        """[K, R], to be minimised; each row is divided by the size of its coefficients.

        The division makes the rows of a conjunction comparable and leaves a property that is
        stated in other units (all rows times 1e4) with the same search.
        """
        scaled = margins * self.scale.unsqueeze(1)
        if mode is LossMode.SUM:
            return scaled.masked_fill(~self.used.unsqueeze(1), 0.0).sum(dim=2)
        # `>=` so that a strict row at exactly 0 still pulls; a row that holds has no gradient.
        hinge = torch.where(scaled >= 0, scaled, torch.zeros_like(scaled)).sum(dim=2)
        tightest = scaled.max(dim=2).values
        return torch.where(tightest < 0, tightest, hinge)
