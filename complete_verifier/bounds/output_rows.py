"""The linear functionals of the output whose lower bounds decide a region's clauses.

A clause is a conjunction ``c_k . y <= d_k``; it is impossible over the box as soon as one of its
rows has ``min c_k . y > d_k`` (``>=`` where the row is strict). A region is proven when every
clause is impossible. Clauses share functionals, so each distinct one is bounded once.

Shapes: S distinct functionals, K constraints over all clauses, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from complete_verifier.specification import Clause


@dataclass(frozen=True, eq=False)
class OutputRows:
    """Functionals and the constraints that use them.

    Attributes:
        exact: ``[S, O]`` float64 coefficients.
        row_of: ``[K]`` functional of each constraint.
        clause_of: ``[K]`` clause of each constraint.
        rhs: ``[K]`` float64.
        strict: ``[K]`` bool.
        num_clauses: number of clauses; one without rows can never be excluded.
    """

    exact: np.ndarray
    row_of: np.ndarray
    clause_of: np.ndarray
    rhs: np.ndarray
    strict: np.ndarray
    num_clauses: int

    @property
    def num_rows(self) -> int:
        """Number of distinct functionals S."""
        return int(self.exact.shape[0])

    def matrix(self, like: Tensor) -> Tensor:
        """The functionals ``[S, O]`` rounded to the dtype that bounds are computed in."""
        return torch.tensor(self.exact, dtype=like.dtype, device=like.device)

    def rounding(self, rounded: Tensor, largest: np.ndarray) -> np.ndarray:
        """How far rounding the coefficients can move each functional, ``[S]`` float64.

        Args:
            rounded: ``[S, O]``, as `matrix` gives it.
            largest: ``[O]`` bounds of |y| over the box.
        """
        moved = np.abs(self.exact - rounded.cpu().numpy().astype(np.float64))
        with np.errstate(invalid="ignore"):
            return np.where(moved > 0, moved * largest, 0.0).sum(axis=1)

    def margins(self, lower: np.ndarray) -> np.ndarray:
        """``lower - rhs`` per constraint, ``[K]``; positive excludes the constraint's clause."""
        return lower[self.row_of] - self.rhs

    def worst_margin(self, lower: np.ndarray) -> float:
        """The margin of the clause that is nearest to being possible: positive excludes all.

        A clause has that of its best row, since one impossible row suffices.
        """
        best = np.full(self.num_clauses, -np.inf)
        np.fmax.at(best, self.clause_of, self.margins(lower))
        return float(best.min())

    def excluded(self, lower: np.ndarray, threshold: float = 0.0) -> np.ndarray:
        """Which clauses no point of the box satisfies, ``[num_clauses]`` bool.

        Args:
            lower: ``[S]`` float64 lower bounds of the functionals; one that is not finite
                excludes nothing.
            threshold: margin demanded on top of zero (`bab.decision_thresh`).
        """
        margins = self.margins(lower)
        impossible = (margins > threshold) | (self.strict & (margins >= threshold))
        impossible &= np.isfinite(margins)
        excluded = np.zeros(self.num_clauses, dtype=bool)
        np.logical_or.at(excluded, self.clause_of[impossible], True)
        return excluded

    def rows_of_open_clauses(self, excluded: np.ndarray) -> np.ndarray:
        """``[S]`` bool: functionals some clause that is not excluded uses."""
        wanted = np.zeros(self.num_rows, dtype=bool)
        wanted[self.row_of[~excluded[self.clause_of]]] = True
        return wanted


def output_rows(clauses: tuple[Clause, ...], num_outputs: int) -> OutputRows:
    """Collect the distinct functionals of `clauses`, in order of first appearance."""
    known: dict[bytes, int] = {}
    distinct: list[np.ndarray] = []
    row_of: list[int] = []
    for clause in clauses:
        for row in clause.coefficients:
            key = (row + 0.0).tobytes()  # -0.0 and 0.0 are one coefficient
            if key not in known:
                known[key] = len(distinct)
                distinct.append(row)
            row_of.append(known[key])
    sizes = [clause.num_rows for clause in clauses]
    empty = np.zeros(0)
    return OutputRows(
        exact=np.stack(distinct) if distinct else np.zeros((0, num_outputs)),
        row_of=np.asarray(row_of, dtype=np.int64),
        clause_of=np.repeat(np.arange(len(clauses)), sizes),
        rhs=np.concatenate([empty, *(clause.rhs for clause in clauses)]),
        strict=np.concatenate([empty, *(clause.strict for clause in clauses)]).astype(bool),
        num_clauses=len(clauses),
    )
