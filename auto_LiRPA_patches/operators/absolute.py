"""How much of |L| exists at a time: interval bounds of a layer need no second copy of it."""

from __future__ import annotations

_MOST_AT_ONCE = 1 << 20
"""Elements; smaller weights are taken whole."""


def block_size(outputs: int, elements_each: int) -> int:
    """Outputs (rows of L) of which |L| is taken together.

    It follows from the shape alone, so that the bits of a product are those of any number of ranks
    that gather the layer.
    """
    return max(1, min(outputs, _MOST_AT_ONCE // max(1, elements_each)))
