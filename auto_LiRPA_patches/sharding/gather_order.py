"""Guess which weights will be asked for next, from what the caller said and what came before.

Plain integers, no communication. A guess depends on nothing but the calls made so far, so ranks
that follow one schedule guess alike; a wrong one costs a transfer and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence

# Repetitions are looked for by their last 32, else 8 weights: shorter ones say little, since every
# pass through the layers begins like the one before and many end elsewhere.
_CONTEXTS = (32, 8)
_MOST_REMEMBERED = 1 << 15
# An operator may use its weights in another order than announced, or one of them twice.
_TOLERATED = 8


class GatherOrder:
    """The weights of the present pass as announced, then as in the repetition being followed."""

    def __init__(self) -> None:
        self._history: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}
        self._follow: int | None = None  # where in the history the present repetition goes on
        self._announced: list[int] = []
        self._done = 0  # how many of them were asked for, or passed over
        self._strayed = 0  # weights asked for since that were not announced

    def expect(self, indices: Sequence[int]) -> None:
        """Take the caller's word for the next weights; replaces what it said before."""
        self._announced = list(indices)
        self._done = self._strayed = 0

    def note(self, index: int) -> None:
        """Learn that weight `index` was asked for."""
        history = self._history
        if len(history) >= _MOST_REMEMBERED:
            self._history = history = []
            self._places.clear()
            self._follow = None
        if self._follow is not None:
            self._follow = self._follow + 1 if history[self._follow] == index else None
        history.append(index)
        contexts = [tuple(history[-n:]) for n in _CONTEXTS if len(history) >= n]
        if self._follow is None:
            found = [self._places[context] for context in contexts if context in self._places]
            self._follow = found[0] if found else None
        for context in contexts:
            self._places[context] = len(history)
        self._compare(index)

    def upcoming(self, count: int) -> list[int]:
        """The next weights, at most `count`; fewer where nothing speaks for more."""
        ahead = self._announced[self._done : self._done + count]
        if self._follow is None:
            return ahead
        period = len(self._history) - self._follow
        repeated = [self._history[self._follow + k % period] for k in range(count)]
        # What is announced is surer; the repetition says what follows it.
        return ahead + repeated[len(ahead) :] if ahead == repeated[: len(ahead)] else ahead

    def _compare(self, index: int) -> None:
        """Find `index` among the next that were announced, or lose faith in them by and by."""
        near = self._announced[self._done : self._done + _TOLERATED]
        if index in near:
            self._done += near.index(index) + 1
            self._strayed = 0
            return
        self._strayed += 1
        if self._strayed > _TOLERATED:
            self.expect(())
