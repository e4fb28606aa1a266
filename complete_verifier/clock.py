"""The clock of one instance, the same on all ranks."""

from __future__ import annotations

import time

from auto_LiRPA_patches.sharding.collectives import Communicator


class Clock:
    """Counts seconds from its creation towards a limit.

    Every decision to stop is taken together: a rank that saw the limit pass alone would leave the
    others in a collective. So all ranks ask at the same places, and one late rank stops all.
    """

    def __init__(self, limit_seconds: float, world: Communicator) -> None:
        self._limit = limit_seconds
        self._world = world
        self._start = time.monotonic()

    @property
    def limit_seconds(self) -> float:
        """Seconds the instance may take."""
        return self._limit

    def seconds(self) -> float:
        """Seconds since the start, by this rank's own clock; not for decisions."""
        return time.monotonic() - self._start

    def out_of_time(self, ahead_seconds: float = 0.0) -> bool:
        """Whether the limit passes on any rank within so many seconds from now.

        A collective: all ranks call it together.
        """
        return self._world.agree_any(self.seconds() + ahead_seconds >= self._limit)

    def among(self, ranks: Communicator) -> Clock:
        """This clock, as `ranks` agree on it: for work that only they do together."""
        clock = Clock(self._limit, ranks)
        clock._start = self._start
        return clock

    def portion(self, fraction: float) -> Clock:
        """A clock for a part of the work: `fraction` of what is left of this one, seconds.

        The fraction is of the remaining time by this rank's own clock; stopping stays collective.
        """
        return Clock(max(0.0, self._limit - self.seconds()) * fraction, self._world)
