"""One input box and the unsafe set over it: what a proof must exclude and an attack must hit.

Shape letters: I inputs (flat), O outputs (flat), B points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from complete_verifier.specification.ball import Ball
from complete_verifier.specification.clause import Clause, read_flags, read_only
from complete_verifier.specification.errors import SpecificationError


class Float32Box(NamedTuple):
    """A box with float32 corners, `lower` and `upper` [I].

    A coordinate with lower > upper holds no float32 at all.
    """

    lower: np.ndarray
    upper: np.ndarray

    @property
    def empty_inputs(self) -> np.ndarray:
        """Indices of the coordinates that hold no float32, ascending."""
        return np.flatnonzero(self.lower > self.upper)


@dataclass(frozen=True, eq=False)
class Region:
    """Inputs x in a box, unsafe where the outputs satisfy at least one of `clauses`.

    The box as stated may have corners that are no float64 (decimals), or open sides (``<``).
    `lower` and `upper` then hold the nearest float64 outside, and the flag `lower_open` or
    `upper_open` says that the corner itself is not a member. So
    ``lower <= x <= upper`` contains every real member, and a float64 x is a member exactly when
    that holds with ``<`` at the open sides.

    Args:
        lower, upper: [I] float64, finite.
        clauses: the unsafe set, a disjunction; empty means that nothing is unsafe here.
        lower_open, upper_open: [I] bool; all False by default.
        ball: inputs outside it are no members either; None is no ball.
        windowed: the set goes on beyond the box, on the sides where an input has no bound. A
            counterexample in the box is one; nothing is proven of the region.

    Raises:
        SpecificationError: shapes disagree or a bound is not finite. lower > upper is allowed: it
            states an empty set, see `is_empty`.
    """

    lower: np.ndarray
    upper: np.ndarray
    clauses: tuple[Clause, ...]
    lower_open: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=bool))
    upper_open: np.ndarray = field(default_factory=lambda: np.zeros((), dtype=bool))
    ball: Ball | None = None
    windowed: bool = False

    def __post_init__(self) -> None:
        lower = read_only(self.lower, np.float64)
        upper = read_only(self.upper, np.float64)
        if lower.ndim != 1 or lower.shape != upper.shape:
            raise SpecificationError(
                "region: expected lower and upper of one shape [num_inputs], "
                f"got {list(lower.shape)} and {list(upper.shape)}"
            )
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise SpecificationError("region: the input box must be finite, got inf or nan")
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "clauses", tuple(self.clauses))
        for name in ("lower_open", "upper_open"):
            flags = read_flags(getattr(self, name), lower.size, f"region: {name}")
            object.__setattr__(self, name, flags)
        widths = {clause.num_outputs for clause in self.clauses}
        if self.ball is not None and self.ball.center.size != lower.size:
            raise SpecificationError(
                f"region: expected a ball over {lower.size} inputs, got {self.ball.center.size}"
            )
        if len(widths) > 1:
            raise SpecificationError(
                f"region: clauses disagree about the number of outputs: {sorted(widths)}"
            )

    @classmethod
    def from_checked(
        cls,
        lower: np.ndarray,
        upper: np.ndarray,
        clauses: tuple[Clause, ...],
        lower_open: np.ndarray,
        upper_open: np.ndarray,
        *,
        windowed: bool = False,
    ) -> Region:
        """Return a region of parts that are known to be valid and read-only, without checking.

        For builders of very many regions, where the checks would take most of the time.
        """
        region = object.__new__(cls)
        fields = region.__dict__  # a frozen dataclass refuses assignment by attribute only
        fields["lower"] = lower
        fields["upper"] = upper
        fields["clauses"] = clauses
        fields["lower_open"] = lower_open
        fields["upper_open"] = upper_open
        fields["windowed"] = windowed
        return region

    @property
    def num_inputs(self) -> int:
        """Number of inputs, I."""
        return int(self.lower.shape[0])

    @property
    def empty_inputs(self) -> np.ndarray:
        """Indices of the inputs whose interval holds no real number, ascending."""
        open_point = (self.lower == self.upper) & (self.lower_open | self.upper_open)
        return np.flatnonzero((self.lower > self.upper) | open_point)

    @property
    def is_empty(self) -> bool:
        """Whether the box holds no point, so that nothing in it can be violated."""
        return bool(self.empty_inputs.size)

    def contains_float32(self, x: np.ndarray) -> bool:
        """Return whether the point `x` lies in the box as it was stated, with no tolerance.

        Args:
            x: I numbers of any shape, float32 (float64 is taken at full precision, not rounded).

        Raises:
            SpecificationError: wrong number of inputs.
        """
        point = np.asarray(x, dtype=np.float64).reshape(-1)
        if point.size != self.num_inputs:
            raise SpecificationError(f"region: expected {self.num_inputs} inputs, got {point.size}")
        above = np.where(self.lower_open, point > self.lower, point >= self.lower)
        below = np.where(self.upper_open, point < self.upper, point <= self.upper)
        return bool((above & below).all()) and (self.ball is None or self.ball.contains(point))

    def float32_outer_box(self) -> Float32Box:
        """Return the smallest closed float32 box that contains the box: bounds for proofs."""
        return Float32Box(*_widened(self.lower, self.upper))

    def float32_inner_box(self) -> Float32Box:
        """Return the float32 points of the box, as a closed box: where an attack may search.

        A float32 x lies in the region exactly when it lies in this box (and in the ball). See
        `Float32Box.empty_inputs` for coordinates, such as 0.1 <= x <= 0.1, that no float32 meets.
        """
        with np.errstate(over="ignore", under="ignore"):
            lower = self.lower.astype(np.float32)
            upper = self.upper.astype(np.float32)
        above = np.nextafter(lower, np.float32(np.inf))
        below = np.nextafter(upper, np.float32(-np.inf))
        lower_outside = (lower < self.lower) | ((lower == self.lower) & self.lower_open)
        upper_outside = (upper > self.upper) | ((upper == self.upper) & self.upper_open)
        return Float32Box(
            np.where(lower_outside, above, lower), np.where(upper_outside, below, upper)
        )

    def float32_image_box(self) -> Float32Box:
        """Return the float32 numbers that real members of the box round to (to nearest, even).

        This is what a float32 network is fed for the inputs of the box, exactly: the box 0.1 <= x
        <= 0.1 holds no float32, yet a network asked about it computes at float32(0.1). Lies
        between `float32_inner_box` and `float32_outer_box`. Means nothing if `is_empty`.
        """
        return Float32Box(
            _image_of_corner(self.lower, self.lower_open, np.float32(np.inf)),
            _image_of_corner(self.upper, self.upper_open, np.float32(-np.inf)),
        )

    def violated_by(self, y: np.ndarray) -> bool:
        """Return whether outputs `y` ([O]) satisfy some clause, in exact arithmetic.

        Whether the input that gave `y` lies in the box is a separate question.
        """
        return any(clause.satisfied_by(y) for clause in self.clauses)

    def margins(self, y: np.ndarray) -> np.ndarray:
        """Return how far each point of `y` is from being unsafe, in float64.

        Args:
            y: [B, O] or [O].

        Returns:
            [B] or scalar: min over clauses of max over rows of ``coefficients @ y - rhs``. At most
            0 where violated, up to rounding (`violated_by` decides); +inf without clauses or for a
            NaN; -inf where a clause has no rows.
        """
        outputs = np.asarray(y, dtype=np.float64)
        margin = np.full(outputs.shape[:-1], np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            for clause in self.clauses:
                rows = outputs @ clause.coefficients.T - clause.rhs
                worst = rows.max(axis=-1, initial=-np.inf)
                margin = np.minimum(margin, np.where(np.isnan(worst), np.inf, worst))
        return np.where(np.isfinite(outputs).all(axis=-1), margin, np.inf)


def _image_of_corner(corner: np.ndarray, is_open: np.ndarray, inside: np.float32) -> np.ndarray:
    """Return the float32 that the members next to a float64 `corner` round to.

    No float32 midpoint lies strictly between two float64 neighbours, so rounding the corner itself
    is right unless the corner is such a midpoint and not a member: then members round away from
    it, towards `inside` (+inf for a lower corner).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        nearest = corner.astype(np.float32)
        # Of the two float32 around a midpoint, the one on the side of the members.
        far = np.nextafter(nearest, inside)
        midpoint = nearest.astype(np.float64) / 2 + far.astype(np.float64) / 2
    return np.where(is_open & (midpoint == corner), far, nearest)


def _widened(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a float64 box outward to float32."""
    with np.errstate(over="ignore", under="ignore"):
        low, high = lower.astype(np.float32), upper.astype(np.float32)
    low = np.where(low > lower, np.nextafter(low, np.float32(-np.inf)), low)
    high = np.where(high < upper, np.nextafter(high, np.float32(np.inf)), high)
    return low, high


def group_regions(regions: Iterable[Region]) -> tuple[Region, ...]:
    """Merge regions over the same box into one with all their clauses, in order of appearance.

    One box is then bounded once, whatever the number of clauses.
    """
    groups: dict[tuple[bytes | int, ...], list[Region]] = {}
    for region in regions:
        box = (region.lower, region.upper, region.lower_open, region.upper_open)
        key: tuple[bytes | int, ...] = (
            id(region.ball),
            int(region.windowed),
            *(array.tobytes() for array in box),
        )
        groups.setdefault(key, []).append(region)
    return tuple(
        members[0]
        if len(members) == 1
        else Region(
            lower=members[0].lower,
            upper=members[0].upper,
            clauses=tuple(clause for member in members for clause in member.clauses),
            lower_open=members[0].lower_open,
            upper_open=members[0].upper_open,
            ball=members[0].ball,
            windowed=members[0].windowed,
        )
        for members in groups.values()
    )
