"""Branch and bound on input boxes.

A round takes the first boxes of the pool, splits and bounds them, tries points of those that stay
open, and puts these back.

Several ranks each own a pool and meet between rounds, as in `activation`. Under
`bab.force_synchronous` a batch is cut into blocks whose bits depend on nothing outside them.

Reference: Bunel et al. 2018 (arXiv 1711.00455), algorithm 1, with the input's domain split; smart
branching after Wang et al. 2018 (arXiv 1809.08098), section 3.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import stop
from complete_verifier.bab.alpha_trial import AlphaEffort, AlphaTrial, Trials
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_bounds import Bounded, InputBounds
from complete_verifier.bab.input_branching import FEW_CHILDREN, children
from complete_verifier.bab.input_pool import Boxes, BoxPool
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.region_group import RegionGroup
from complete_verifier.bab.share import NoRoomError, next_batch, next_blocks
from complete_verifier.bab.stop import Tally
from complete_verifier.bab.tree_attack import is_due
from complete_verifier.bounds.input_box import input_box


def input_branch_and_bound(
    context: BabContext,
    settings: InputSplitSettings,
    bab: BabSettings,
    group: RegionGroup | None = None,
) -> BabOutcome:
    """Decide regions by splitting their boxes.

    Args:
        context: network, region, clock and confirmation; all ranks call this alike.
        settings: heuristic and bounding.
        bab: batch size, order, limits and threshold.
        group: the regions, searched together; None = that of the context alone.

    Returns:
        Proven where no region holds an unsafe point, violated where one does.

    Raises:
        SoundnessError: bounds cross; nothing is concluded.
    """
    group = RegionGroup.of([context.region]) if group is None else group
    if any(region.windowed for region in group.regions):
        raise ValueError("a window of an unbounded set cannot be branched on")
    if not group.regions:
        return BabOutcome(ending=Ending.PROVEN, reason="the region has no unsafe point")
    for region in group.regions:
        if not all(clause.num_rows for clause in region.clauses):
            return _always_unsafe(context.about(region))
    return _Search(context, settings, bab, group).run()


_NOUN = "boxes"
# A walk takes as long from one box as from many: from a few it is seldom worth it, in the first
# rounds least of all, when the attack before branching has just looked at the same places.
_WALK_PERIOD, _WORTH_A_WALK = 32, 32
# Blocks a batch is cut into where it may be spread over any number of ranks: whether few or many,
# they are as many for each of 2, 3, 4 or 6 ranks. What is done once per block takes as long as some
# twenty children, so that fewer than this are left together.
_BLOCKS = 12
_FEWER_BLOCKS = (1, 2, 4, 6)
_WORTH_A_BLOCK = 48
# A batch does not grow beyond so many tiles of each rank: such rounds lose nothing any more, and
# points are tried between rounds only.
_MOST_TILES = 2
_DEPTH = 3  # column of the keys of boxes


class _Search:
    """The regions' boxes: this rank's pool, its counters, and those of all ranks together."""

    def __init__(
        self,
        context: BabContext,
        settings: InputSplitSettings,
        bab: BabSettings,
        group: RegionGroup,
    ) -> None:
        self.context = context
        self.partners = context.partners
        self.settings = settings
        self.bab = bab
        self.batch = bab.first_batch()
        self.alpha = AlphaTrial(settings.alpha_steps)
        self.bounds = InputBounds(
            context.network,
            group,
            context.bounds,
            settings,
            bab.threshold,
            in_blocks=bab.synchronous,
        )
        self.roots = group.roots(self.bounds.root, settings.bf_period)
        self.attack = InputAttack(context, group)
        self.pool = BoxPool(worst_first=bab.by_bound)
        self.pool.add(self.roots.select(torch.arange(0)))
        self.stuck_margin = float("inf")
        self.start = time.monotonic()
        self.own = Tally()
        self.total = Tally()

    def run(self) -> BabOutcome:
        """Rounds until every box is excluded, a counterexample is found or a limit is met."""
        self._count(self.partners.attempt(self._begin))
        while (found := stop.ending(self.total, self.bab, self.context)) is None:
            self._count(self._round())
        if found is Ending.PROVEN:
            stop.check_nothing_left(self.partners, self.own)
        ended = stop.outcome(found, self.total, self.bab, _NOUN)
        return replace(ended, fingerprint=stop.sum_of(self.partners, self.pool.fingerprint))

    def _begin(self) -> None:
        """Regions as a whole: shared out, or all the first rank's where bits count.

        A root's bits may depend on the roots that are bounded beside it.
        """
        ranks = self.partners.pool
        shares = 1 if self.bab.synchronous else ranks.size
        own = torch.arange(self.roots.count)[ranks.rank :: shares]
        if ranks.rank < shares and own.numel():
            self._receive(self.bounds.bound(self.roots.select(own)), 0)
            self._note_trials()

    def _round(self) -> Exception | None:
        """Take boxes, split them, bound the children, keep what is open.

        Returns:
            What went wrong on this rank, for all to learn.
        """
        self.own = replace(self.own, trials=Trials())
        try:
            blocks, number = self._next_blocks()
        except NoRoomError as error:
            return error if error.here else None
        rounds = self.own.rounds
        taken = sum(block.count for block in blocks)
        self.own = replace(self.own, rounds=rounds + 1, taken=taken)
        few = max(1, min(FEW_CHILDREN, self.batch.size, self.bounds.tile) // number)
        # This rank's part of the batch; of one that is cut for any number of ranks, a block's.
        most = self.batch.size // (number if self.bab.synchronous else self.partners.pool.size)
        effort = self.alpha.effort(number)
        return self.partners.attempt(lambda: self._work(blocks, rounds, few, most, effort))

    @property
    def _parents(self) -> int:
        """Boxes that a round splits at most; a child is a subproblem."""
        return max(1, self.batch.size // 2)

    def _next_blocks(self) -> tuple[list[Boxes], int]:
        """This rank's boxes of the next batch, each block in the order of paths.

        Also the number of blocks that the bits depend on: all ranks', or one.
        """
        waiting = self.total.waiting_by_rank
        if self.bab.synchronous:
            # A tile holds the last box of a block too, whose children may be as many as this.
            most = max(1, self.bounds.tile - self._most_children)
            return next_blocks(
                self.partners,
                self.pool,
                self._parents,
                waiting,
                self._children_of,
                lambda children: number_of_blocks(children, most),
            )
        parents = next_batch(self.partners, self.pool, self._parents, waiting, in_order=False)
        if parents.count == 0:
            return [], 1
        # Neighbours share stable neurons, which is what makes a tile cheap.
        return [parents.select(parents.path.argsort(stable=True))], 1

    @property
    def _most_children(self) -> int:
        """Children of one box that are bounded: a pair, or one for each of its inputs."""
        asks = self.settings.heuristic == "brute-force"
        return 2 * self.roots.lower.shape[1] if asks else 2

    def _children_of(self, keys: np.ndarray) -> np.ndarray:
        """How many children of each box are bounded, ``[n]``; see `children`."""
        due = keys[:, _DEPTH] % self.settings.bf_period == 0
        return np.where(due, self._most_children, 2)

    def _work(
        self, blocks: list[Boxes], rounds: int, few: int, most: int, effort: AlphaEffort
    ) -> None:
        """Split and bound blocks of boxes.

        Args:
            few, most: children of a block, see `children`.
            effort: how α-CROWN is used on each block.
        """
        found = []
        for block in blocks:
            self.bounds.begin_block(effort)
            found += self._expand(block, rounds, few, most)
        self._note_trials()
        if found:
            bounded = Bounded.concatenate(found)
            self.own = replace(self.own, visited=self.own.visited + bounded.boxes.count)
            self._receive(bounded, rounds + 1)

    def _note_trials(self) -> None:
        self.own = replace(self.own, trials=self.bounds.trials())

    def _expand(self, parents: Boxes, rounds: int, few: int, most: int) -> list[Bounded]:
        """Bounded children; half of the parents at a time where memory does not hold all."""
        try:
            bound, briefly = self.bounds.bound, self.bounds.briefly
            return [children(parents, bound, self.settings, few, rounds, briefly, most)]
        except Exception as error:
            least = parents.count < 2 and max(few, most) <= 2
            if least or self.partners.layers_split or not ran_out_of_memory(error):
                raise
        self.context.bounds.told(f"memory ran out: {parents.count} boxes are split in halves")
        places = torch.arange(parents.count, device=parents.path.device)
        halves = [half for half in places.tensor_split(2) if half.numel()]
        # Of fewer parents no more children are to be made than they would have had among others.
        few, most = few // 2, min(most, 4 * parents.count) // 2
        return [
            one for half in halves for one in self._expand(parents.select(half), rounds, few, most)
        ]

    def _receive(self, bounded: Bounded, rounds: int) -> None:
        """Try points of open boxes; put those that can be split into the pool."""
        still = bounded.select(bounded.boxes.is_open)
        can_split = still.boxes.splittable.any(dim=1)
        stuck = still.select(~can_split)
        found = self._attack(still, stuck, rounds)
        self.pool.add(still.boxes if stuck.boxes.count == 0 else still.boxes.select(can_split))
        if stuck.boxes.count:
            self.stuck_margin = min(self.stuck_margin, float(stuck.boxes.margin.min()))
        self.own = replace(self.own, stuck=self.own.stuck + stuck.boxes.count, counterexample=found)

    def _count(self, failure: Exception | None) -> None:
        """Bring the tally up to date with the pool, sum up over ranks, and report."""
        self.own = replace(
            self.own,
            waiting=len(self.pool),
            pool_bytes=self.pool.num_bytes,
            worst_margin=min(self.stuck_margin, self.pool.worst_margin),
            late=self.context.out_of_time(),
        )
        total = self.total = stop.together(self.partners, self.own, failure)
        self.alpha.note(total.trials)
        self._grow_batch(2 * total.taken)
        self.context.say(stop.status(total, _NOUN, time.monotonic() - self.start))

    def _grow_batch(self, children: int) -> None:
        """The next round's batch, after one of so many children of all ranks.

        A tile bounds the memory on a CPU, where what is done once per tile is what a larger batch
        spares; elsewhere all boxes of a batch are bounded together.
        """
        if self.batch.size >= _MOST_TILES * self.partners.pool.size * self.bounds.tile:
            return
        on_cpu = self.roots.lower.device.type == "cpu"
        self.batch = self.batch.after(children, 0.0 if on_cpu else self.context.memory_used())

    def _attack(self, still: Bounded, stuck: Bounded, rounds: int) -> Counterexample | None:
        """Cheap points every round; a walk now and then.

        Boxes that cannot be split are never met again, so they are tried at once.
        """
        check = self.settings.adv_check
        if check < 0:
            return None
        # Of the others this rank knows what they had visited before the round.
        if max(self.total.visited, self.own.visited) < check:
            return self.attack.look(stuck)
        found = self.attack.look(still)
        if found is not None:
            return found
        found = self.attack.approach(still.boxes)
        if found is not None:
            return found
        # Of all ranks together, so that it does not depend on how many these are.
        many = self.total.waiting >= _WORTH_A_WALK
        due = is_due(rounds, _WALK_PERIOD) and (many or (rounds and rounds % _WALK_PERIOD == 0))
        return self.attack.walk(still.boxes) if due else None


def number_of_blocks(work: int, most: int) -> int:
    """Into how many blocks so much work is cut, where `most` is what one of them may hold."""
    worthwhile = min(_BLOCKS, -(-work // _WORTH_A_BLOCK))
    wanted = max(-(-work // most), worthwhile)
    for number in _FEWER_BLOCKS:
        if wanted <= number:
            return number
    return -(-wanted // _BLOCKS) * _BLOCKS


def _always_unsafe(context: BabContext) -> BabOutcome:
    """A clause without constraints holds for every output: any point is a counterexample."""
    centre = input_box(context.network.graph, context.region).center.flatten(1).cpu().numpy()
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
