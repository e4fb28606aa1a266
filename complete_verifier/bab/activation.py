"""Branch and bound on activations.

A round takes the first subproblems of the pool, splits each at a neuron (at several while they are
few), bounds the children, and puts back those that are still open.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.subproblems import relu_like, splittable
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import branching, stop
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.features import Features
from complete_verifier.bab.leaf import decide_leaf
from complete_verifier.bab.look import look
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.pool import DomainBatch, DomainPool
from complete_verifier.bab.probe import ReluProbe
from complete_verifier.bab.splitter import LOCATE, Splitter
from complete_verifier.bab.stop import Tally
from complete_verifier.bab.tree_attack import TreeAttack
from complete_verifier.bounds.root import Root


def activation_branch_and_bound(
    root: Root, context: BabContext, settings: BabSettings
) -> BabOutcome:
    """Decide a region whose root bounds left clauses open.

    Args:
        root: what bounds know of the region.
        context: network, clock, confirmation; all ranks call this alike.
        settings: effort and heuristics.
    """
    if not splittable(root.graph):
        return BabOutcome(
            ending=Ending.STUCK,
            reason="branching on activations needs a network that is nonlinear in them alone",
            domains_left=int((~root.excluded).sum()),
            lower_bound=float(root.rows.margins(root.lower).min()),
        )
    return _Tree(root, context, settings).run()


_LEAVES_PER_ASK = 16
_NOUN = "subproblems"


class _Tree:
    """One region's pool and counters."""

    def __init__(self, root: Root, context: BabContext, settings: BabSettings) -> None:
        self.features = Features.of(root)
        self.clauses = OpenClauses.of(root, settings.threshold)
        self.bounding = Bounding(
            root,
            self.features,
            self.clauses,
            context.bounds,
            in_tiles=settings.synchronous,
            inner=settings.inner,
        )
        self.context = context
        self.settings = settings
        self.size = settings.first_batch()
        self.pool = DomainPool(worst_first=settings.by_bound)
        self.attack = TreeAttack(context)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.stuck_margin = float("inf")
        self.start = time.monotonic()
        self.tally = Tally()
        self._plant(root)
        self._count()

    def run(self) -> BabOutcome:
        """Rounds until every subproblem is excluded or a limit is met."""
        while (found := stop.ending(self.tally, self.settings, self.context)) is None:
            self._round()
            self._count()
        ended = stop.outcome(found, self.tally, self.settings, _NOUN)
        return replace(ended, fingerprint=self.pool.fingerprint)

    def _plant(self, root: Root) -> None:
        """One subproblem per open clause."""
        count, width = self.clauses.index.shape
        table = root.box.lower.new_zeros(root.rows.num_rows, 0)
        if self.features.spans:
            table = self.features.join_alphas(root.alphas)[:, 0]
        lower = torch.from_numpy(root.lower)[self.clauses.index.cpu()]
        # `thresholds` already hold the slack that `root.lower` has taken off.
        slack = torch.from_numpy(root.slack)[self.clauses.index.cpu()]
        margin = (lower + slack - self.clauses.thresholds.cpu()).amax(dim=1)
        clause = torch.arange(count)
        self.pool.add(
            DomainBatch(
                clause=clause,
                path=clause + 1,
                depth=torch.zeros(count, dtype=torch.int64),
                splits=torch.zeros(count, 0, dtype=torch.int32),
                points=torch.zeros(count, 0, dtype=table.dtype),
                betas=torch.zeros(count, width, 0, dtype=table.dtype),
                alphas=table[self.clauses.index].cpu(),
                ranges=self.bounding.root_ranges(count),
                margin=margin,
            )
        )

    def _round(self) -> None:
        """Take a batch, decide its leaves, split and bound the rest, keep what is open."""
        settings = self.settings
        if settings.sort_interval and self.tally.rounds % settings.sort_interval == 0:
            self.pool.sort()
        batch = self.pool.take(self.size.size)
        taken = batch.count
        signs = self.bounding.signs(batch)
        is_open = self.bounding.open(batch, signs)
        leaves = ~is_open.any(dim=1).cpu()
        if bool(leaves.any()):
            found = self._leaves(batch.select(leaves))
            if found is not None:
                self.tally = replace(self.tally, counterexample=found)
                return
            batch, is_open = batch.select(~leaves), is_open[~leaves]
        if batch.count == 0:
            return
        scores, points = look(self.bounding, batch, is_open)
        found = self.attack.look(points, self.tally.rounds)
        if found is not None:
            self.pool.add(batch)
            self.tally = replace(self.tally, counterexample=found)
            return
        children = self._split(batch, scores, is_open)
        children = self.bounding.optimize(
            children, settings.own_beta, stop_early=not settings.synchronous
        )
        self.tally = replace(
            self.tally,
            rounds=self.tally.rounds + 1,
            visited=self.tally.visited + children.count,
        )
        self.pool.add(children.select(~(children.margin > 0)))
        self.size = self.size.after(taken, self.context.memory_used())

    def _count(self) -> None:
        """Bring the tally up to date with the pool, and report."""
        self.tally = replace(
            self.tally,
            waiting=len(self.pool),
            worst_margin=min(self.pool.worst_margin, self.stuck_margin),
            pool_bytes=self.pool.num_bytes,
        )
        self.context.say(stop.status(self.tally, _NOUN, time.monotonic() - self.start))

    def _split(self, batch: DomainBatch, scores: branching.Scores, is_open: Tensor) -> DomainBatch:
        """Children of every subproblem; ``2^k`` each, k > 1 while the batch is small."""
        settings = self.settings
        splitter = Splitter(self.bounding, batch, LOCATE[settings.point_method])
        probe = ReluProbe(self.bounding, batch) if relu_like(self.bounding.root.graph) else None

        def evaluate(feature: Tensor, side: Tensor) -> Tensor:
            if probe is not None:
                return probe.margins(feature, side)
            return self.bounding.evaluate(splitter.child(batch, feature.cpu(), side.cpu()))

        first = branching.choose(
            scores,
            settings.method,
            settings.candidates,
            settings.reduceop,
            evaluate,
            self.generator,
        )
        levels = self.size.levels(batch.count, int(is_open.sum(dim=1).min()))
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
        """Decide subproblems without an open neuron exactly."""
        for number in range(batch.count):
            if number % _LEAVES_PER_ASK == 0 and self.context.out_of_time():
                self.pool.add(batch.select(torch.arange(number, batch.count)))
                return None
            leaf = batch.select(torch.tensor([number]))
            self.tally = replace(self.tally, visited=self.tally.visited + 1)
            proven, point = decide_leaf(self.bounding, leaf)
            if proven:
                continue
            found = self.context.try_points(point)
            if found is not None:
                return found
            self.tally = replace(self.tally, stuck=self.tally.stuck + 1)
            self.stuck_margin = min(self.stuck_margin, float(leaf.margin[0]))
        return None
