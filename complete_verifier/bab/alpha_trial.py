"""Whether α-CROWN is worth its time on the boxes that cheaper bounds leave open.

On wide boxes it proves little that two halves would not prove sooner; near the leaves, or where
inputs are many, it may close the tree. So it is tried on a few boxes, and left off for twice as
many rounds after each failure. What it costs and saves is counted in boxes, not by a clock: two
runs do the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ALPHA_SAMPLE = 16
"""Boxes that are tried first, of all blocks of a round together."""

_LEAST_SAMPLE = 2
_LONGEST_PAUSE = 1 << 10
# A step of α-CROWN takes as long for a box as forward+crown takes for so many, and as long for a
# handful of boxes as for so many more (measured, ACAS Xu, five steps: 25 ms and 1.1 for each box,
# against 0.1).
_BOXES_PER_STEP = 3.0
_OVERHEAD = 16
_MOST_SPLITS = 40


@dataclass(frozen=True)
class Trials:
    """How often a round tried α-CROWN on some boxes, and how often that paid.

    Of one rank, or of all together.
    """

    tried: int = 0
    paid: int = 0

    def and_one(self, paid: bool) -> Trials:
        """With one more."""
        return Trials(self.tried + 1, self.paid + int(paid))


@dataclass(frozen=True)
class AlphaEffort:
    """How α-CROWN is used on a block of boxes.

    Attributes:
        sample: boxes it is tried on first; 0 = none.
        iterations: its steps.
    """

    sample: int = ALPHA_SAMPLE
    iterations: int = 0

    @property
    def is_on(self) -> bool:
        """Whether it is used at all."""
        return self.sample > 0 and self.iterations > 0

    def worth_trying(self, below: Tensor) -> bool:
        """Whether closing all that are left would save more than it costs.

        Args:
            below: ``[n]`` the boxes expected below each open one, see `boxes_below`.
        """
        return self.is_on and self._saves(below, below.numel())

    def pays(self, below: Tensor, tried: int) -> bool:
        """Whether to go on, having closed the boxes of `below` of so many."""
        return 2 * below.numel() >= tried and self._saves(below, tried)

    def stopped(self) -> AlphaEffort:
        """Without α-CROWN."""
        return replace(self, sample=0)

    def _saves(self, below: Tensor, tried: int) -> bool:
        cost = _BOXES_PER_STEP * self.iterations * (tried + _OVERHEAD)
        return float(below.sum()) > cost


def boxes_below(before: Tensor, after: Tensor, threshold: float) -> Tensor:
    """How many boxes splitting would make of each before all are closed, ``[n]`` float64.

    One that its last split brought forward as far as these brought theirs on average needs so many
    more, and each doubles the boxes; those that α-CROWN closes are mostly the ones that two or
    three would have closed too.

    Args:
        before, after: ``[n]`` margins of boxes, and of their parents before; not finite where
            nothing is known.
        threshold: of a proof.
    """
    gained = (after - before).clamp(min=0)
    known = gained[torch.isfinite(gained)]
    step = known.mean() if known.numel() else gained.new_zeros(())
    splits = ((threshold - after) / step).nan_to_num(nan=_MOST_SPLITS, posinf=_MOST_SPLITS)
    return 2.0 ** (1 + splits.clamp(min=0, max=_MOST_SPLITS))


class AlphaTrial:
    """The rounds of one search that try; the same on all its ranks."""

    def __init__(self, iterations: int) -> None:
        """The first round tries."""
        self._iterations = iterations
        self._pause = 0
        self._left = 0

    def effort(self, blocks: int) -> AlphaEffort:
        """For each of the next round's blocks, asked once per round."""
        sample = max(_LEAST_SAMPLE, ALPHA_SAMPLE // blocks)
        if self._left > 0:
            self._left -= 1
            sample = 0
        return AlphaEffort(sample, self._iterations)

    def note(self, trials: Trials) -> None:
        """What a round of all ranks came to; none tried says nothing."""
        if trials.tried == 0:
            return
        fails = 2 * trials.paid < trials.tried
        self._pause = min(max(1, 2 * self._pause), _LONGEST_PAUSE) if fails else 0
        self._left = self._pause
