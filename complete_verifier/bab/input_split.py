"""Branch and bound on input boxes.

A round takes the first boxes of the pool, splits and bounds them, tries points of those that stay
open, and puts these back.

Reference: Bunel et al. 2018 (arXiv 1711.00455), algorithm 1, with the input's domain split; smart
branching after Wang et al. 2018 (arXiv 1809.08098), section 3.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import stop
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_bounds import Bounded, InputBounds
from complete_verifier.bab.input_branching import children
from complete_verifier.bab.input_pool import BoxPool, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.stop import Tally
from complete_verifier.bab.tree_attack import is_due
from complete_verifier.bounds.input_box import input_box
from complete_verifier.bounds.output_rows import OutputRows, output_rows


def input_branch_and_bound(
    context: BabContext, settings: InputSplitSettings, bab: BabSettings
) -> BabOutcome:
    """Decide one region by splitting its box.

    Args:
        context: network, region, clock and confirmation; all ranks call this alike.
        settings: heuristic and bounding.
        bab: batch size, order, limits and threshold.

    Raises:
        SoundnessError: bounds cross; nothing is concluded.
    """
    region, network = context.region, context.network
    rows = output_rows(region.clauses, network.num_outputs)
    if region.is_empty or rows.num_clauses == 0:
        return BabOutcome(ending=Ending.PROVEN, reason="the region has no unsafe point")
    box = input_box(context.network.graph, context.region)
    if not all(clause.num_rows for clause in region.clauses):
        return _always_unsafe(context, box)
    return _Search(context, settings, bab, rows, box).run()


_NOUN = "boxes"
_WALK_PERIOD = 32


class _Search:
    """One region's pool and counters."""

    def __init__(
        self,
        context: BabContext,
        settings: InputSplitSettings,
        bab: BabSettings,
        rows: OutputRows,
        box: Interval,
    ) -> None:
        self.context = context
        self.settings = settings
        self.bab = bab
        self.bounds = InputBounds(
            context.network, rows, box, context.bounds, settings, bab.threshold
        )
        excluded = torch.zeros(rows.num_clauses, dtype=torch.bool, device=box.lower.device)
        self.region = root_boxes(box.lower.flatten(), box.upper.flatten(), excluded)
        self.attack = InputAttack(context)
        self.pool = BoxPool(worst_first=bab.by_bound)
        self.stuck_margin = float("inf")
        self.start = time.monotonic()
        self.progress = Tally()

    def run(self) -> BabOutcome:
        """Rounds until every box is excluded, a counterexample is found or a limit is met."""
        self._receive(self.bounds.bound(self.region))
        while (found := stop.ending(self.progress, self.bab, self.context)) is None:
            self._round()
            seconds = time.monotonic() - self.start
            self.context.say(stop.status(self.progress, _NOUN, seconds))
        return stop.outcome(found, self.progress, self.bab, _NOUN)

    def _round(self) -> None:
        """Take boxes, split them, bound the children, keep what is open."""
        parents = self.pool.take(max(1, self.bab.batch_size // 2))
        # Neighbours share stable neurons, which is what makes a tile cheap.
        parents = parents.select(parents.path.argsort(stable=True))
        bounded = children(
            parents,
            self.bounds.bound,
            self.settings,
            self.bab.batch_size,
            self.progress.rounds,
        )
        self.progress = replace(
            self.progress,
            rounds=self.progress.rounds + 1,
            visited=self.progress.visited + bounded.boxes.count,
        )
        self._receive(bounded)

    def _receive(self, bounded: Bounded) -> None:
        """Try points of open boxes; put those that can be split into the pool."""
        still = bounded.select(bounded.boxes.is_open)
        can_split = still.boxes.splittable.any(dim=1)
        found = self._attack(still, still.select(~can_split))
        self.pool.add(still.boxes.select(can_split))
        stuck = still.boxes.margin[~can_split]
        if stuck.numel():
            self.stuck_margin = min(self.stuck_margin, float(stuck.min()))
        self.progress = replace(
            self.progress,
            waiting=len(self.pool),
            pool_bytes=self.pool.num_bytes,
            stuck=self.progress.stuck + int(stuck.numel()),
            worst_margin=min(self.stuck_margin, self.pool.worst_margin),
            counterexample=found,
        )

    def _attack(self, still: Bounded, stuck: Bounded) -> Counterexample | None:
        """Cheap points every round; a walk now and then.

        Boxes that cannot be split are never met again, so they are tried at once.
        """
        check, rounds = self.settings.adv_check, self.progress.rounds
        if check < 0:
            return None
        if self.progress.visited < check:
            return self.attack.look(stuck)
        found = self.attack.look(still)
        if found is not None:
            return found
        found = self.attack.approach(still.boxes)
        if found is not None:
            return found
        return self.attack.walk(still.boxes) if is_due(rounds, _WALK_PERIOD) else None


def _always_unsafe(context: BabContext, box: Interval) -> BabOutcome:
    """A clause without constraints holds for every output: any point is a counterexample."""
    centre = box.center.flatten(1).cpu().numpy()
    found = context.try_points(centre)
    if found is None:
        return BabOutcome(
            ending=Ending.STUCK,
            reason="a clause holds for every output, but no point of the box could be confirmed",
            domains_left=1,
            lower_bound=float("-inf"),
        )
    return BabOutcome(
        ending=Ending.VIOLATED,
        reason="a clause of the property holds for every output",
        lower_bound=float("-inf"),
        counterexample=found,
    )
