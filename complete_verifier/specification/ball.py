"""Weighted balls of norm 1 and 2: input sets that are no boxes.

Shape letter: I inputs (flat).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from complete_verifier.specification.clause import read_only
from complete_verifier.specification.errors import SpecificationError

NORMS = (1.0, 2.0)
# Sums of I float64 terms err by less than this times I, relative.
_UNIT = 4.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Ball:
    """Inputs with ``|| weights * (x - center) ||_norm <= radius``.

    Args:
        center: [I] float64.
        radius: at least 0.
        norm: 1 or 2; a ball of norm inf is a box.
        weights: [I] float64, above 0: one over what an input is divided by before the network
            reads it, where the radius counts before that.

    Raises:
        SpecificationError: another norm, shapes that differ, or a number out of range.
    """

    center: np.ndarray
    radius: float
    norm: float
    weights: np.ndarray

    def __post_init__(self) -> None:
        center, weights = read_only(self.center, np.float64), read_only(self.weights, np.float64)
        if self.norm not in NORMS:
            raise SpecificationError(f"ball: expected norm 1 or 2, got {self.norm:g}")
        if center.ndim != 1 or weights.shape != center.shape:
            raise SpecificationError(
                f"ball: expected center and weights of one shape [num_inputs], got "
                f"{list(center.shape)} and {list(weights.shape)}"
            )
        if not (np.isfinite(center).all() and np.isfinite(self.radius) and self.radius >= 0):
            raise SpecificationError(
                "ball: center and radius must be finite, the radius at least 0"
            )
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise SpecificationError("ball: weights must be finite and above 0")
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "weights", weights)

    def contains(self, x: np.ndarray) -> bool:
        """Return whether the point `x` [I] (float32 or float64) lies in the ball, exactly.

        A float64 sum with an error bound settles all points but those near the surface, which are
        summed up in rationals.
        """
        point = np.asarray(x, dtype=np.float64).reshape(-1)
        terms = np.abs(self.weights * (point - self.center))
        size, limit = float((terms**self.norm).sum()), self.radius**self.norm
        slack = _UNIT * (point.size + 4) * (size + limit)
        if not np.isfinite(size) or size - limit > slack:
            return False
        if limit - size > slack:
            return True
        exact = sum(
            (
                abs(Fraction(w) * (Fraction(v) - Fraction(c))) ** int(self.norm)
                for w, v, c in zip(
                    self.weights.tolist(), point.tolist(), self.center.tolist(), strict=True
                )
            ),
            Fraction(0),
        )
        return exact <= Fraction(self.radius) ** int(self.norm)

    def toward(self, points: np.ndarray) -> np.ndarray:
        """`points` [B, I], those outside moved towards the centre onto the surface (or just in).

        A step along the ray, not the nearest point of the ball; where a search goes on from.
        """
        offsets = points - self.center
        sizes = np.linalg.norm(self.weights * offsets, ord=self.norm, axis=-1, keepdims=True)
        share = np.minimum(1.0, self.radius / np.maximum(sizes, np.finfo(np.float64).tiny))
        return self.center + offsets * share

    def lowest(self, gradient: np.ndarray) -> np.ndarray:
        """The point of the ball where ``gradient . x`` is least, [.., I] for each of [.., I]."""
        scaled = gradient / self.weights
        if self.norm == 1:
            steepest = np.abs(scaled).argmax(axis=-1, keepdims=True)
            direction = np.zeros_like(scaled)
            signs = np.sign(np.take_along_axis(scaled, steepest, axis=-1))
            np.put_along_axis(direction, steepest, signs, axis=-1)
        else:
            size = np.linalg.norm(scaled, axis=-1, keepdims=True)
            direction = scaled / np.maximum(size, np.finfo(np.float64).tiny)
        return self.center - self.radius * direction / self.weights

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """The smallest box around the ball, [I] lower and upper, each rounded outwards."""
        reach = np.nextafter(self.radius / self.weights, np.inf)
        return (
            np.nextafter(self.center - reach, -np.inf),
            np.nextafter(self.center + reach, np.inf),
        )
