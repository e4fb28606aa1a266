"""The one place that prints.

Results go to standard output through `Printer`, everything else through `logging` to standard
error. Only one rank speaks; which one is for the caller to say.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO


class Printer:
    """Writes result lines, at once, on the rank that speaks; silent on all others."""

    def __init__(self, speaks: bool, stream: TextIO | None = None) -> None:
        self._stream = (sys.stdout if stream is None else stream) if speaks else None

    def line(self, text: str = "") -> None:
        """Write `text` and a newline."""
        if self._stream is not None:
            print(text, file=self._stream, flush=True)


class Progress:
    """Progress of a long step through `logging`, at most once per interval.

    The first report is held back for one interval too, so that short steps say nothing.
    """

    def __init__(
        self,
        logger: logging.Logger,
        speaks: bool,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start counting.

        Args:
            speaks: whether this rank reports.
            interval: seconds between two lines.
            clock: seconds, never going back.
        """
        self._logger = logger
        self._speaks = speaks
        self._interval = interval
        self._clock = clock
        self._last = clock()

    def report(self, message: str, *arguments: object) -> None:
        """Log `message % arguments`, unless a line was logged within the interval."""
        if not self._speaks or self._clock() - self._last < self._interval:
            return
        self._last = self._clock()
        self._logger.info(message, *arguments)
