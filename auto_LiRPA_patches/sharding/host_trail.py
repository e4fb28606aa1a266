"""What each rank gathered last, kept where the other ranks of its host can read it.

Ranks that read each other's weights do not wait for one another. One that left the common schedule
mostly fails soon, over shapes that do not fit; this tells it why, without a message that the others
may never answer.

Layout, in bytes from where it begins in a rank's file: how many gathers there were (8), then the
last 256 of them in a ring: the parameter's index (8), and how often it was gathered before (8).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence

from auto_LiRPA_patches.sharding.gather_trail import Step

_REMEMBERED = 256
_COUNT = struct.Struct("<q")
_STEP = struct.Struct("<qq")
TRAIL_BYTES = _COUNT.size + _REMEMBERED * _STEP.size

_POLL_SECONDS = 0.01


class HostTrail:
    """This rank's trail."""

    def __init__(self, file: int, offset: int) -> None:
        """Write it to `file` from `offset` on, where zeros are."""
        self._file, self._offset = file, offset
        self._count = 0

    def note(self, step: Step) -> None:
        """One more gather."""
        place = _COUNT.size + (self._count % _REMEMBERED) * _STEP.size
        os.pwrite(self._file, _STEP.pack(*step), self._offset + place)
        self._count += 1
        os.pwrite(self._file, _COUNT.pack(self._count), self._offset)


def parting(
    files: Sequence[int], rank: int, offset: int, patience_seconds: float
) -> list[Step | None] | None:
    """Every rank's first step at which they part; None where they do not, as far as is known.

    Args:
        files: of all ranks, by rank.
        rank: the one that asks; it waits for the others to come as far.
        patience_seconds: how long.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        trails = [_read(file, offset) for file in files]
        for number in sorted(trails[rank]):
            steps = [trail.get(number) for trail in trails]
            if len({step for step in steps if step is not None}) > 1:
                return steps
        furthest = [max(trail, default=-1) for trail in trails]
        if min(furthest) >= furthest[rank] or time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)


def _read(file: int, offset: int) -> dict[int, Step]:
    """The last steps of a rank, by number; those that are overwritten meanwhile are left out."""
    before = _COUNT.unpack(os.pread(file, _COUNT.size, offset))[0]
    ring = os.pread(file, TRAIL_BYTES - _COUNT.size, offset + _COUNT.size)
    after = _COUNT.unpack(os.pread(file, _COUNT.size, offset))[0]
    steps = list(_STEP.iter_unpack(ring))
    # The one that is being written now is not yet counted.
    first = max(0, after + 1 - _REMEMBERED)
    return {number: steps[number % _REMEMBERED] for number in range(first, before)}
