"""Whether α-CROWN is worth its time on the boxes that cheaper bounds leave open.

On wide boxes it proves little that two halves would not prove sooner; near the leaves, or where
inputs are many, it may close the tree. So it is tried on a few boxes of a tile, and left off for
twice as many tiles after each failure. Counts decide, not clocks: two runs do the same.
"""

from __future__ import annotations

ALPHA_SAMPLE = 16
"""Boxes of a tile that are tried first."""

_LONGEST_PAUSE = 1 << 10


class AlphaTrial:
    """Counts successes of one search."""

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    def is_due(self) -> bool:
        """Whether the next tile should try; asked once per tile."""
        if self._left == 0:
            return True
        self._left -= 1
        return False

    def pays(self, solved: int, tried: int) -> bool:
        """Note how many of the boxes tried were closed; whether to go on with their tile."""
        if 2 * solved >= tried:
            self._pause = 0
            return True
        self._pause = min(max(1, 2 * self._pause), _LONGEST_PAUSE)
        self._left = self._pause
        return False
