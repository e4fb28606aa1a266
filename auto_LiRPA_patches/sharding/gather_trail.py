"""What a rank gathered, compared now and then with what the others did.

Ranks that read weights from each other's memory never wait for one another, so one that left the
common schedule would not be noticed: what it computes belongs to another node, and the others would
take it for theirs.
"""

from __future__ import annotations

from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.number_hash import hash_of

_STEPS = 64
Step = tuple[int, int]
"""A parameter's index, and how often it was gathered before."""


class GatherTrail:
    """The gathers since ranks last compared them."""

    def __init__(self, communicator: Communicator) -> None:
        """Nothing is gathered yet."""
        self._communicator = communicator
        self._steps: list[Step] = []
        self._known = 0

    def knows(self, index: int) -> bool:
        """Whether every rank had registered parameter `index` when they last compared."""
        return index < self._known

    def note(self, step: Step) -> None:
        """One more gather."""
        self._steps.append(step)

    @property
    def is_due(self) -> bool:
        """Whether it is time to compare; at the same gather on all ranks."""
        return len(self._steps) >= _STEPS

    def compare(self, registered: int, digest: int, layout: int) -> list[Step | None] | None:
        """Begin a new trail if all ranks' are the same. A collective.

        Args:
            registered: parameters there are.
            digest: of what was registered.
            layout: of where slices lie in a rank's memory.

        Returns:
            None where all agree; else every rank's first step at which they part, None for a rank
            that had not come so far. Where only the parameters differ, they part nowhere.

        Raises:
            RanksDisagreeError: on every rank, if they come here and to another collective.
        """
        mark = hash_of(number for step in self._steps for number in step)
        own = [len(self._steps), mark, registered, digest, layout]
        rows = self._communicator.all_gather_integers("weights gathered", own)
        if len(set(rows)) == 1:
            self._steps.clear()
            self._known = registered
            return None
        trails: list[list[Step]] = self._communicator.all_gather_object(self._steps)
        for place in range(max(map(len, trails))):
            steps = [trail[place] if place < len(trail) else None for trail in trails]
            if len(set(steps)) > 1:
                return steps
        return [None] * len(trails)
