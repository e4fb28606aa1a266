"""The float32 inputs an attack may try, and the exact test that an input is one of them.

Networks read float32, and a counterexample must lie in the region's box exactly. Hence each
coordinate is searched between the smallest and the largest float32 number of its interval.

An interval may hold no float32 at all: many published properties fix an input to a decimal such as
0.1. The network then cannot be given a member of the box; what it reads is the float32 that a
member rounds to, and only that is allowed. Such coordinates are counted, so that a report can say
so. Both neighbours lie in the region's float32 outer box, which is what bounds are computed over,
so a proof and a counterexample of this kind still contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from complete_verifier.specification import Region
from complete_verifier.specification.ball import Ball

# A point on the surface of a ball may leave it when it is rounded to float32.
_FLOAT32_ROOM = 1e-6


@dataclass(frozen=True, eq=False)
class SearchBox:
    """All float32 vectors that stand for members of a region's box.

    Args:
        lower, upper: [I] float32, lower <= upper.
        rounded: [I] bool, True where the stated interval holds no float32 and `lower`, `upper` are
            what its ends round to.
        ball: the vectors outside it stand for no member; None is no ball.
    """

    lower: np.ndarray
    upper: np.ndarray
    rounded: np.ndarray
    ball: Ball | None = None

    @staticmethod
    def of(region: Region) -> SearchBox | None:
        """Return the box to search, or None where the region holds no point or no finite one."""
        if region.is_empty:
            return None
        inner = region.float32_inner_box()
        rounded = inner.lower > inner.upper
        with np.errstate(over="ignore", under="ignore"):
            lower = np.where(rounded, region.lower.astype(np.float32), inner.lower)
            upper = np.where(rounded, region.upper.astype(np.float32), inner.upper)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            return None
        return SearchBox(lower=lower, upper=upper, rounded=rounded, ball=region.ball)

    def holds(self, x: np.ndarray) -> bool:
        """Return whether `x` ([I] float32) is one of the vectors, compared exactly."""
        if x.dtype != np.float32 or x.shape != self.lower.shape:
            raise ValueError(
                f"SearchBox.holds: expected float32 {list(self.lower.shape)}, "
                f"got {x.dtype} {list(x.shape)}."
            )
        inside = bool(((self.lower <= x) & (x <= self.upper)).all())
        return inside and (self.ball is None or self.ball.contains(x))

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """`x` [B, I] or [I], those of its points that lie outside the ball moved inside."""
        if self.ball is None:
            return x
        return np.clip(self._inner_ball.toward(x), self.lower, self.upper)

    def lowest(self, gradient: np.ndarray) -> np.ndarray:
        """Where in the ball ``gradient . x`` is least, [.., I] for each of [.., I]."""
        return self._inner_ball.lowest(gradient)

    @property
    def _inner_ball(self) -> Ball:
        if self.ball is None:
            raise ValueError("SearchBox: there is no ball")
        return replace(self.ball, radius=self.ball.radius * (1 - _FLOAT32_ROOM))
