"""How many subproblems a round takes, and how often each of them is split."""

from __future__ import annotations

from dataclasses import dataclass, replace

_ROOMY = 0.5
"""A batch that left half of the device's memory unused may be doubled."""


@dataclass(frozen=True)
class BatchSize:
    """The batch of a region's branch and bound.

    Attributes:
        size: most subproblems that a round splits (`solver.batch_size` to begin with).
        may_grow: `solver.auto_enlarge_batch_size`.
        min_children: `solver.min_batch_size_ratio` times the first size: where one split each
            would make fewer subproblems than that, several neurons are split at once.
    """

    size: int
    may_grow: bool
    min_children: float

    def after(self, taken: int, memory_used: float) -> BatchSize:
        """The batch of the next round.

        Args:
            taken: subproblems of this round, the most of all ranks.
            memory_used: largest share of the device's memory taken so far, of all ranks.
        """
        if not self.may_grow or taken < self.size or memory_used >= _ROOMY:
            return self
        return replace(self, size=2 * self.size)

    def levels(self, taken: int, fewest_open: int, children: float = 0.0) -> int:
        """Neurons each subproblem is split at, 2^levels children each; at least one.

        Args:
            taken: subproblems that are split, of all ranks together.
            fewest_open: open neurons of the subproblem that has the fewest.
            children: wanted, if more than `min_children`.
        """
        levels, wanted = 1, max(self.min_children, children)
        while levels < fewest_open and taken << (levels + 1) <= wanted:
            levels += 1
        return levels
