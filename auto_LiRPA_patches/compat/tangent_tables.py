"""Building a graph needs no tables of tangents: our S-shaped relaxations find theirs directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def precompute_nothing(
    self: Any,
    name: str,
    func: Callable[[Tensor], Tensor],
    dfunc: Callable[[Tensor], Tensor],
    x_limit: float = 500,
) -> None:
    """Replaces `BoundTanh.precompute_relaxation`, which Sigmoid inherits.

    Upstream's relaxation of these nodes reads the tables, so that using it raises AttributeError.
    """
