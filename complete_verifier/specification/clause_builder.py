"""Turn exact output rows into dense clauses, sharing the coefficients of equal ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from complete_verifier.specification.clause import Clause
from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.exact import round_up
from complete_verifier.specification.formula import OutputRow

Terms = tuple[tuple[int, float], ...]

MAX_COEFFICIENT_BYTES = 8 * 2**30


class ClauseBuilder:
    """Makes clauses over `num_outputs` outputs.

    Large disjunctions repeat a few coefficient matrices with many right-hand sides, so a matrix is
    stored once.
    """

    def __init__(self, num_outputs: int, source: str) -> None:
        self._num_outputs = num_outputs
        self._source = source
        self._matrices: dict[tuple[Terms, ...], np.ndarray] = {}
        self._flags: dict[tuple[bool, ...], np.ndarray] = {}
        self._bytes = 0

    def build(self, rows: Sequence[OutputRow]) -> Clause:
        """Return the conjunction of `rows`.

        Raises:
            SpecificationError: all clauses together need more than MAX_COEFFICIENT_BYTES.
        """
        rounded = [round_up(row.bound) for row in rows]
        rhs = np.array([bound for bound, _ in rounded], dtype=np.float64)
        rhs.flags.writeable = False
        exact = all(is_exact for _, is_exact in rounded)
        return Clause.from_checked(
            coefficients=self._coefficients(tuple(row.terms for row in rows)),
            rhs=rhs,
            strict=self._strict(tuple(row.strict for row in rows)),
            exact_rhs=None if exact else tuple(row.bound for row in rows),
        )

    def _strict(self, strict: tuple[bool, ...]) -> np.ndarray:
        flags = self._flags.get(strict)
        if flags is None:
            flags = np.array(strict, dtype=bool)
            flags.flags.writeable = False
            self._flags[strict] = flags
        return flags

    def _coefficients(self, rows: tuple[Terms, ...]) -> np.ndarray:
        matrix = self._matrices.get(rows)
        if matrix is not None:
            return matrix
        self._bytes += 8 * len(rows) * self._num_outputs
        if self._bytes > MAX_COEFFICIENT_BYTES:
            raise SpecificationError(
                f"{self._source}: the output constraints need more than "
                f"{MAX_COEFFICIENT_BYTES // 2**30} GiB; split the property into several files"
            )
        matrix = np.zeros((len(rows), self._num_outputs))
        for row, terms in enumerate(rows):
            for index, coefficient in terms:
                matrix[row, index] = coefficient
        matrix.flags.writeable = False
        self._matrices[rows] = matrix
        return matrix
