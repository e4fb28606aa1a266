"""A conjunction of linear constraints on the network's outputs, and its exact evaluation.

Shape letters: M rows of the clause, O outputs of the network (flat), B points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.exact import Exact, round_up

_EPSILON = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).smallest_subnormal)


def read_only(values: object, dtype: type) -> np.ndarray:
    """Return `values` as a read-only array of `dtype`; a caller's writable array is not shared."""
    given = np.asarray(values)
    array: np.ndarray = np.asarray(given, dtype=dtype)
    if array.flags.writeable:
        if array is values or array.base is not None:
            array = array.copy()
        array.flags.writeable = False
    return array


def read_flags(values: object, length: int, what: str) -> np.ndarray:
    """Return `values` as [length] read-only bools; one bool stands for all."""
    flags = read_only(values, bool)
    if flags.shape == (length,):
        return flags
    if flags.ndim:
        raise SpecificationError(f"{what}: expected [{length}], got {list(flags.shape)}")
    return np.broadcast_to(flags, (length,))


@dataclass(frozen=True, eq=False)
class Clause:
    """Linear constraints that must all hold: row m says ``coefficients[m] @ y <= rhs[m]``.

    Coefficients are exact. Where a bound is no float64, `rhs` holds the next float64 above it, so
    that the float64 rows describe a superset of the clause (what a proof needs), and `exact_rhs`
    holds the bound itself (what a counterexample must meet). A clause without rows holds for every
    output.

    Args:
        coefficients: [M, O] float64.
        rhs: [M] float64, rounded up where `exact_rhs` is given.
        strict: [M] bool, True for ``<`` in place of ``<=``; all False by default.
        exact_rhs: M rationals, or None where every entry of `rhs` is exact.

    Raises:
        SpecificationError: shapes disagree, a number is not finite, or `rhs` < `exact_rhs`.
    """

    coefficients: np.ndarray
    rhs: np.ndarray
    strict: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=bool))
    exact_rhs: tuple[Exact, ...] | None = None

    def __post_init__(self) -> None:
        coefficients = read_only(self.coefficients, np.float64)
        rhs = read_only(self.rhs, np.float64)
        if coefficients.ndim != 2 or rhs.shape != coefficients.shape[:1]:
            raise SpecificationError(
                "clause: expected coefficients [M, num_outputs] and rhs [M], "
                f"got {list(coefficients.shape)} and {list(rhs.shape)}"
            )
        if not (np.isfinite(coefficients).all() and np.isfinite(rhs).all()):
            raise SpecificationError("clause: coefficients and rhs must be finite, got inf or nan")
        object.__setattr__(self, "coefficients", coefficients)
        object.__setattr__(self, "rhs", rhs)
        object.__setattr__(self, "strict", read_flags(self.strict, rhs.size, "clause: strict"))
        self._check_exact_rhs()

    @classmethod
    def from_checked(
        cls,
        coefficients: np.ndarray,
        rhs: np.ndarray,
        strict: np.ndarray,
        exact_rhs: tuple[Exact, ...] | None,
    ) -> Clause:
        """Return a clause of parts that are known to be valid and read-only, without checking.

        For builders of very many clauses, where the checks would take most of the time.
        """
        clause = object.__new__(cls)
        fields = clause.__dict__  # a frozen dataclass refuses assignment by attribute only
        fields["coefficients"] = coefficients
        fields["rhs"] = rhs
        fields["strict"] = strict
        fields["exact_rhs"] = exact_rhs
        return clause

    def _check_exact_rhs(self) -> None:
        if self.exact_rhs is None:
            return
        if len(self.exact_rhs) != self.num_rows:
            raise SpecificationError(
                f"clause: expected {self.num_rows} exact bounds, got {len(self.exact_rhs)}"
            )
        for rounded, exact in zip(self.rhs.tolist(), self.exact_rhs, strict=True):
            if type(exact)(rounded) < exact:
                raise SpecificationError(
                    f"clause: rhs {rounded!r} lies below its exact bound {exact}; round it up"
                )

    def shifted(self, offset: float) -> Clause:
        """The clause with `offset` added to every bound, exactly: above 0 more outputs satisfy it.

        Raises:
            SpecificationError: a bound leaves the range of float64.
        """
        given: Sequence[Exact] = self.exact_rhs or self.rhs.tolist()
        exact = tuple(Fraction(bound) + Fraction(offset) for bound in given)
        try:
            rhs = np.array([round_up(bound)[0] for bound in exact])
        except OverflowError:
            raise SpecificationError(f"rhs_offset: {offset:g} moves a bound beyond 1e308") from None
        return Clause(self.coefficients, rhs, self.strict, exact)

    @property
    def num_rows(self) -> int:
        """Number of constraints, M."""
        return int(self.rhs.shape[0])

    @property
    def num_outputs(self) -> int:
        """Number of network outputs the rows speak of, O."""
        return int(self.coefficients.shape[1])

    def satisfied_by(self, y: np.ndarray) -> bool:
        """Return whether every row holds at `y` ([O], float32 or float64), in exact arithmetic.

        A float64 evaluation with an error bound settles all rows but those near equality, which
        are evaluated in rationals. A NaN or an infinity in `y` satisfies nothing.
        """
        outputs = np.asarray(y, dtype=np.float64).reshape(-1)
        if outputs.size != self.num_outputs:
            raise SpecificationError(
                f"clause: expected {self.num_outputs} outputs, got {outputs.size}"
            )
        if not np.isfinite(outputs).all():
            return False
        with np.errstate(over="ignore", invalid="ignore"):
            excess = self.coefficients @ outputs - self.rhs
            size = np.abs(self.coefficients) @ np.abs(outputs) + np.abs(self.rhs)
            # Twice the classical bound n·eps·sum|c·y| for a dot product in any order, plus the
            # rounding of rhs itself (one ulp) and underflow of each product.
            slack = 2.0 * (outputs.size + 3) * (_EPSILON * size + _TINY)
        if bool((excess > slack).any()):
            return False
        # `~(…)` rather than `>=`: an overflow made the estimate NaN and settles nothing.
        undecided = np.flatnonzero(~(excess < -slack))
        return all(self._row_holds(int(row), outputs) for row in undecided)

    def _row_holds(self, row: int, outputs: np.ndarray) -> bool:
        coefficients = self.coefficients[row]
        value = sum(
            (Fraction(float(coefficients[j])) * Fraction(float(outputs[j])))
            for j in np.flatnonzero(coefficients)
        )
        bound = Fraction(self.exact_rhs[row] if self.exact_rhs else float(self.rhs[row]))
        return value < bound if self.strict[row] else value <= bound
