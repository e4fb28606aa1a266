"""Counterexamples that an attack within branch and bound comes across."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from complete_verifier.attack.counterexample import Counterexample


class Finds:
    """Keeps the first confirmed counterexample.

    Attributes:
        first: it, or None.
    """

    def __init__(
        self, confirm: Callable[[np.ndarray], Counterexample | None], *, go_on: bool
    ) -> None:
        """Prepare.

        Args:
            confirm: replays a candidate ``[I]``.
            go_on: let an attack run to its end although it has found one, since other ranks that
                have not still use the network together with this one.
        """
        self.first: Counterexample | None = None
        self._confirm = confirm
        self._go_on = go_on

    def accept(self, point: np.ndarray) -> Counterexample | None:
        """What an attack asks about a candidate: the counterexample if it may stop there."""
        if self.first is None:
            self.first = self._confirm(point)
        return None if self._go_on else self.first
