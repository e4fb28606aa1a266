"""Branch and bound on activations.

A round takes the first subproblems of the pool, splits each at a neuron (at several while they are
few), bounds the children, and puts back those that are still open.

Several ranks each own a pool: they agree on the batch and hand subproblems over where shares are
uneven, each works on its own, and what came of it is summed up before the next round. See `share`,
`partners` and `stop`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.engine.subproblems import has_kink, relu_like, splittable
from auto_LiRPA_patches.sharding.collectives import Communicator
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import branching, stop
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.exchange import gather
from complete_verifier.bab.features import Features
from complete_verifier.bab.leaf import decide_leaf
from complete_verifier.bab.look import look
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.pool import DomainPool
from complete_verifier.bab.probe import ReluProbe
from complete_verifier.bab.share import NoRoomError, next_batch
from complete_verifier.bab.splitter import LOCATE, Splitter
from complete_verifier.bab.stop import Tally
from complete_verifier.bab.tree_attack import TreeAttack
from complete_verifier.bounds.root import Root


def activation_branch_and_bound(
    root: Root, context: BabContext, settings: BabSettings
) -> BabOutcome:
    """Decide a region whose root bounds left clauses open.

    Args:
        root: what bounds know of the region; the same on all ranks.
        context: network, clock, confirmation, partners; all ranks call this alike.
        settings: effort and heuristics.
    """
    graph = root.graph
    if not (splittable(graph) or any(has_kink(graph, index) for index in graph.relaxed)):
        return BabOutcome(
            ending=Ending.STUCK,
            reason="branching on activations needs a ReLU neuron beside products and softmax",
            domains_left=int((~root.excluded).sum()),
            lower_bound=float(root.rows.margins(root.lower).min()),
        )
    with context.partners.apart(graph.weights):
        return _Tree(root, context, settings).run()


_LEAVES_PER_ASK = 16
# Children that each rank makes of a few subproblems in one round, at most: of those that a step is
# worth taking for (`Bounding.worthwhile`) so many make it hardly longer. The cap is for tiny
# networks and accelerators, where a step is worth any number: not all neurons are split at once.
_FRACTION, _MOST_CHILDREN = 4, 32
_MANY = 1 << 40
_NOUN = "subproblems"


class _Tree:
    """One region's subproblems: this rank's pool, its counters, and those of all ranks together."""

    def __init__(self, root: Root, context: BabContext, settings: BabSettings) -> None:
        self.features = Features.of(root)
        self.clauses = OpenClauses.of(root, settings.threshold)
        self.partners = context.partners
        self.bounding = Bounding(
            root,
            self.features,
            self.clauses,
            context.bounds,
            in_tiles=settings.synchronous,
            tile_size=settings.tile_size,
            inner=settings.inner,
            partners=context.partners,
        )
        self.context = context
        self.settings = settings
        self.size = settings.first_batch()
        self.pool = DomainPool(worst_first=settings.by_bound)
        self.attack = TreeAttack(context)
        self.stuck_margin = float("inf")
        self.start = time.monotonic()
        self.own = Tally()
        every = self.bounding.undivided()
        self.stand_in = every.select(torch.arange(1))
        self.branches = self.no_branches = _Branches(every.select(torch.arange(0)), None)
        partners = self.partners.pool
        own = every.select(torch.arange(every.count)[partners.rank :: partners.size])
        self.total = self._count(self.partners.attempt(lambda: self._begin(own, every.count)))

    def _begin(self, own: DomainBatch, total: int) -> None:
        """Put this rank's subproblems into its pool.

        Where there are fewer of all ranks than ranks, and these may do other work than one rank
        would, they are split before anything is bounded: all but one would stand idle for a round.
        """
        if own.count and self._is_free and total < self.partners.pool.size:
            is_open = self.bounding.splittable(own)
            # Two for each rank: of fewer none would be handed over.
            levels = (-(-2 * self.partners.pool.size // total) - 1).bit_length()
            if levels <= int(is_open.sum(dim=1).min()):
                own = self._split_first(own, is_open, levels)
        self.pool.add(own)

    def _split_first(self, own: DomainBatch, is_open: Tensor, levels: int) -> DomainBatch:
        """Children with their parents' bounds; the parents where memory does not hold more."""
        try:
            return self._split(own, look(self.bounding, own, is_open)[0], levels)
        except Exception as error:
            if self.partners.layers_split or not ran_out_of_memory(error):
                raise
        return own

    @property
    def _is_free(self) -> bool:
        """Whether there are ranks that decide for themselves, and need not do one rank's work."""
        partners = self.partners
        return partners.pool.size > 1 and not (self.settings.synchronous or partners.in_step)

    def run(self) -> BabOutcome:
        """Rounds until every subproblem is excluded or a limit is met."""
        while (found := stop.ending(self.total, self.settings, self.context)) is None:
            self.total = self._count(self._round())
        if found is Ending.PROVEN:
            stop.check_nothing_left(self.partners, self.own)
        ended = stop.outcome(found, self.total, self.settings, _NOUN)
        return replace(ended, fingerprint=stop.sum_of(self.partners, self.pool.fingerprint))

    def _round(self) -> Exception | None:
        """Take a batch, decide its leaves, split and bound the rest, keep what is open.

        Returns:
            What went wrong on this rank, for all to learn.
        """
        settings, partners = self.settings, self.partners
        if settings.sort_interval and self.own.rounds % settings.sort_interval == 0:
            self.pool.sort()
        try:
            batch = self._next_batch()
        except NoRoomError as error:
            return error if error.here else None
        rounds = self.own.rounds
        self.own = replace(self.own, rounds=rounds + 1, taken=batch.count)
        failure = partners.attempt(lambda: self._cut_leaves(batch))
        levels, most = self._agree_on_splits(self.branches)
        if failure is None and self.own.counterexample is None and most:
            failure = partners.attempt(lambda: self._work(self.branches, levels, most, rounds))
        self.branches = self.no_branches  # not to be held beside the next batch
        return failure

    def _next_batch(self) -> DomainBatch:
        return next_batch(
            self.partners,
            self.pool,
            self.size.size,
            self.total.waiting_by_rank,
            in_order=self.settings.synchronous,
            least=self.bounding.economical,
        )

    def _cut_leaves(self, batch: DomainBatch) -> None:
        """Decide the leaves of a batch; what can be split becomes this round's branches."""
        is_open = self.bounding.splittable(batch)
        leaves = ~is_open.any(dim=1).cpu()
        found = self._leaves(batch.select(leaves))
        if found is not None:
            self.own = replace(self.own, counterexample=found)
            return
        if bool(leaves.any()):
            batch, is_open = batch.select(~leaves), is_open[~leaves]
        self.branches = _Branches(batch, is_open)

    def _agree_on_splits(self, branches: _Branches) -> tuple[int, int]:
        """Neurons each subproblem is split at, and the most subproblems a rank splits.

        Ranks that neither compute in step nor do the work of one rank decide for themselves, as if
        all had as many subproblems. A collective otherwise.
        """
        pool = self.partners.pool
        group = Communicator.single() if self._is_free else pool
        own = [branches.batch.count, branches.fewest_open]
        rows = group.all_gather_integers("subproblems to split", own)
        counts = [count for count, _ in rows]
        if not any(counts):
            return 1, 0
        taken = sum(counts) * pool.size // group.size
        levels = self.size.levels(taken, min(fewest for _, fewest in rows), self._wanted_children())
        self.bounding.fit_tiles(sum(counts) << levels)
        return levels, max(counts)

    def _wanted_children(self) -> int:
        """Children wanted of all ranks, where fewer would leave some of them with next to nothing.

        They depend on the number of ranks, which synchronous rounds must not.
        """
        if not self._is_free:
            return 0
        own = min(self.bounding.worthwhile // _FRACTION, _MOST_CHILDREN, self.size.size)
        return self.partners.pool.size * own

    def _work(self, branches: _Branches, levels: int, most: int, rounds: int) -> None:
        """Split and bound; where ranks compute in step, `most` subproblems on each of them."""
        own = branches.batch.count
        batch, is_open = branches.batch, branches.is_open
        if self.partners.in_step:
            batch, is_open = self._filled_up(batch, most)
        if batch.count == 0 or is_open is None:
            return
        now = _Round(rounds, levels, own, leads=True)
        if self._expand_by(self.bounding.part_size(), batch, is_open, now):
            self.pool.add(branches.batch)

    def _expand_by(self, size: int, batch: DomainBatch, is_open: Tensor, now: _Round) -> bool:
        """Split and bound `size` subproblems at a time, so that a round holds little more.

        What is not begun when time runs out goes back to the pool.

        Returns:
            Whether a counterexample ended the round, on this rank or one that computes in step.
        """
        first = 0
        for part, here in zip(batch.split(size), is_open.split(size), strict=True):
            if first and self.context.out_of_time():
                self.pool.add(batch.select(torch.arange(min(first, now.real), now.real)))
                break
            if self._expand(part, here, now.of(first, part.count)):
                return True
            first += part.count
        return False

    def _expand(self, batch: DomainBatch, is_open: Tensor, now: _Round) -> bool:
        """Split and bound; half of the batch at a time where memory does not hold all of it.

        Where other ranks take part in every use of a layer, too little memory ends the run.
        """
        try:
            return self._expand_at_once(batch, is_open, now)
        except Exception as error:
            alone = not (self.partners.in_step or self.partners.layers_split)
            if not (alone and batch.count > 1 and ran_out_of_memory(error)):
                raise
        self.context.bounds.told(f"memory ran out: {batch.count} subproblems are split in halves")
        return self._expand_by(-(-batch.count // 2), batch, is_open, now)

    def _expand_at_once(self, batch: DomainBatch, is_open: Tensor, now: _Round) -> bool:
        children = self._children(batch, is_open, now)
        if children is None:
            return True
        children = self.bounding.optimize(
            children,
            self.settings.own_beta,
            stop_early=not self.settings.synchronous,
            in_place=True,
        )
        if now.real < batch.count:
            children = children.select(torch.arange(children.count) % batch.count < now.real)
        self.pool.add(children.select(~(children.margin > 0)))
        self.own = replace(self.own, visited=self.own.visited + children.count)
        return False

    def _children(self, batch: DomainBatch, is_open: Tensor, now: _Round) -> DomainBatch | None:
        """Split each subproblem; None where a counterexample ends the round."""
        scores, points = look(self.bounding, batch, is_open)
        found = self.attack.look(points, now.number, may_move=now.leads)
        if found is not None:
            self.own = replace(self.own, counterexample=found)
        if self._agreed(found is not None):
            return None
        return self._split(batch, scores, now.levels)

    def _filled_up(self, batch: DomainBatch, count: int) -> tuple[DomainBatch, Tensor]:
        """`count` subproblems with their open features: the last, or a stand-in, repeated."""
        if batch.count == 0:
            batch = self.stand_in
        batch = batch.select(torch.arange(count).clamp(max=batch.count - 1))
        return batch, self.bounding.splittable(batch)

    def _agreed(self, found: bool) -> bool:
        """Whether a counterexample ends the round: any rank's where they compute in step."""
        return self.partners.weights.agree_any(found)

    def _count(self, failure: Exception | None) -> Tally:
        """Bring the tally up to date with the pool, sum up over ranks, and report."""
        self.own = replace(
            self.own,
            waiting=len(self.pool),
            worst_margin=min(self.pool.worst_margin, self.stuck_margin),
            pool_bytes=self.pool.num_bytes,
            late=self.context.out_of_time(),
        )
        total = stop.together(self.partners, self.own, failure)
        self.size = self.size.after(total.taken, self.context.memory_used())
        self.context.say(stop.status(total, _NOUN, time.monotonic() - self.start))
        return total

    def _split(self, batch: DomainBatch, scores: branching.Scores, levels: int) -> DomainBatch:
        """Children of every subproblem, ``2^levels`` each."""
        settings = self.settings
        splitter = Splitter(self.bounding, batch, LOCATE[settings.point_method])
        probe = ReluProbe(self.bounding, batch) if relu_like(self.bounding.root.graph) else None

        def evaluate(tried: Tensor) -> Tensor:
            if probe is not None:
                return probe.margins(tried)
            margins = [
                self.bounding.evaluate(
                    splitter.child(batch, feature, torch.full_like(feature, side))
                )
                for feature in tried.cpu()
                for side in (1, -1)
            ]
            return torch.stack(margins).unflatten(0, (-1, 2))

        first = branching.choose(
            scores,
            settings.method,
            settings.candidates,
            settings.reduceop,
            evaluate,
            lambda: branching.drawn_from_paths(batch.path, settings.seed, self.features.total),
            self.partners.weights.agree_max,
        )
        chosen = branching.several(scores, first, levels).cpu()
        children = [batch]
        for level in range(levels):
            feature = chosen[:, level]
            children = [
                splitter.child(parent, feature, torch.full_like(feature, side))
                for parent in children
                for side in (1, -1)
            ]
        return DomainBatch.concatenate(children)

    def _leaves(self, batch: DomainBatch) -> Counterexample | None:
        """Decide subproblems without an open neuron exactly.

        Where ranks compute in step, all of them work on the leaves of all, each for the same ones.
        """
        every, first = gather(self.partners.weights, batch)
        for number in range(every.count):
            mine = first <= number < first + batch.count
            if number % _LEAVES_PER_ASK == 0 and self.context.out_of_time():
                done = min(max(0, number - first), batch.count)
                self.pool.add(batch.select(torch.arange(done, batch.count)))
                return None
            leaf = every.select(torch.tensor([number]))
            self.own = replace(self.own, visited=self.own.visited + mine)
            proven, point = decide_leaf(self.bounding, leaf)
            if proven:
                continue
            found = self.context.try_points(point)
            if found is not None:
                return found
            if mine:
                self.own = replace(self.own, stuck=self.own.stuck + 1)
                self.stuck_margin = min(self.stuck_margin, float(leaf.margin[0]))
        return None


@dataclass(frozen=True)
class _Round:
    """What is alike for the subproblems of a round that are split at a time.

    Attributes:
        number: of the round.
        levels: neurons each subproblem is split at.
        real: how many subproblems are no stand-ins; these come first.
        leads: whether the round's first are among them.
    """

    number: int
    levels: int
    real: int
    leads: bool

    def of(self, first: int, count: int) -> _Round:
        """For `count` of these subproblems, from `first`."""
        real = min(max(self.real - first, 0), count)
        return replace(self, real=real, leads=self.leads and first == 0)


@dataclass(frozen=True)
class _Branches:
    """The subproblems of a round that can be split, and ``[B, T]`` which features they can be
    split at; None where there is none.
    """

    batch: DomainBatch
    is_open: Tensor | None

    @property
    def fewest_open(self) -> int:
        """Open features of the subproblem that has the fewest."""
        if self.is_open is None or self.batch.count == 0:
            return _MANY
        return int(self.is_open.sum(dim=1).min())
