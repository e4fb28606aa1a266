"""Branch and bound on input boxes.

A round takes the first boxes of the pool, splits and bounds them, tries points of those that stay
open, and puts these back. Taking, working and deciding when to stop are apart: `_ending` looks at
counts only, so that several ranks can reduce them and stop together.

Reference: Bunel et al. 2018 (arXiv 1711.00455), algorithm 1, with the input's domain split; smart
branching after Wang et al. 2018 (arXiv 1809.08098), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_bounds import Bounded, InputBounds
from complete_verifier.bab.input_branching import children
from complete_verifier.bab.input_pool import BoxPool, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
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


@dataclass(frozen=True)
class Progress:
    """Counts that the stop decision rests on; over several ranks, their sums and minima.

    Attributes:
        rounds: rounds done.
        open_boxes: boxes in the pool.
        visited: boxes bounded, the root's excluded.
        stuck: boxes that can neither be excluded nor split.
        worst_margin: smallest margin of an open or stuck box.
        counterexample: a confirmed one.
    """

    rounds: int = 0
    open_boxes: int = 0
    visited: int = 0
    stuck: int = 0
    worst_margin: float = float("inf")
    counterexample: Counterexample | None = None


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
        self.attack = InputAttack(context, self.bounds, self.region)
        self.pool = BoxPool(worst_first=bab.worst_first)
        self.stuck_margin = float("inf")
        self.progress = Progress()

    def run(self) -> BabOutcome:
        """Rounds until every box is excluded, a counterexample is found or a limit is met."""
        self._receive(self.bounds.bound(self.region))
        while (ending := self._ending()) is None:
            self._round()
            self.context.say(self._status())
        progress = self.progress
        return BabOutcome(
            ending=ending,
            reason=self._reason(ending),
            rounds=progress.rounds,
            domains_visited=progress.visited,
            domains_left=progress.open_boxes + progress.stuck,
            lower_bound=progress.worst_margin,
            counterexample=progress.counterexample,
        )

    def _ending(self) -> Ending | None:
        """Whether to stop, from counts and the clock alone."""
        progress, bab = self.progress, self.bab
        if progress.counterexample is not None:
            return Ending.VIOLATED
        if progress.open_boxes == 0:
            return Ending.STUCK if progress.stuck else Ending.PROVEN
        if self.context.out_of_time():
            return Ending.TIMEOUT
        if progress.open_boxes + progress.stuck > bab.max_domains:
            return Ending.MAX_DOMAINS
        if bab.max_iterations is not None and progress.rounds >= bab.max_iterations:
            return Ending.MAX_ITERATIONS
        return None

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
            open_boxes=len(self.pool),
            stuck=self.progress.stuck + int(stuck.numel()),
            worst_margin=min(self.stuck_margin, self.pool.worst_margin),
            counterexample=found,
        )

    def _attack(self, still: Bounded, stuck: Bounded) -> Counterexample | None:
        """Cheap points every round; a walk in rounds 0, 1, 2, 4, 8, … and every 32nd.

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
        due = rounds & (rounds - 1) == 0 or rounds % 32 == 0
        return self.attack.walk(still.boxes) if due else None

    def _status(self) -> str:
        progress = self.progress
        return (
            f"input splitting, round {progress.rounds}: {progress.visited} boxes visited, "
            f"{progress.open_boxes} open ({self.pool.num_bytes} bytes), "
            f"worst margin {progress.worst_margin:.6g}"
        )

    def _reason(self, ending: Ending) -> str:
        progress = self.progress
        return {
            Ending.PROVEN: f"{progress.visited} boxes exclude every violation",
            Ending.VIOLATED: "counterexample found while splitting the input box",
            Ending.TIMEOUT: "the time limit was reached",
            Ending.MAX_DOMAINS: f"more than {self.bab.max_domains:g} open boxes (bab.max_domains)",
            Ending.MAX_ITERATIONS: f"{progress.rounds} rounds were allowed (bab.max_iterations)",
            Ending.STUCK: f"{progress.stuck} boxes one float wide can neither be excluded nor "
            "split",
        }[ending]


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
