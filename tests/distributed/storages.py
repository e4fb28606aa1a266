"""Storages that a test expects to be freed."""

from __future__ import annotations

import time
import weakref

import torch

_PATIENCE_SECONDS = 1.0


class Storages:
    """Those of the noted ones that are alive; gloo's own thread lets go a moment after the wait."""

    def __init__(self) -> None:
        self._alive: list[weakref.ref[torch.UntypedStorage]] = []

    def note(self, storage: torch.UntypedStorage) -> None:
        """Watch it, once."""
        if all(entry() is not storage for entry in self._alive):
            self._alive.append(weakref.ref(storage))

    def count(self, expected: int) -> int:
        """How many are alive, after waiting for a moment while more than `expected` are."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._alive = [entry for entry in self._alive if entry() is not None]
            if len(self._alive) <= expected or time.monotonic() > patience:
                return len(self._alive)
            time.sleep(0.01)
