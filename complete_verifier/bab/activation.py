"""Branch and bound on ReLU activations.

A round takes the first subproblems of the pool, splits each at a neuron (at several when the pool
is smaller than the batch), bounds the children, and puts back those that are still open.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.subproblems import relu_like
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import branching, stop
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.features import Features
from complete_verifier.bab.leaf import decide_leaf
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.pool import DomainBatch, DomainPool
from complete_verifier.bab.stop import Tally
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
    if not relu_like(root.graph):
        return BabOutcome(
            ending=Ending.STUCK,
            reason="branching on activations needs a network whose only nonlinearity is ReLU",
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
        self.bounding = Bounding(root, self.features, self.clauses, context.bounds)
        self.context = context
        self.settings = settings
        self.pool = DomainPool(worst_first=settings.by_bound)
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
        return stop.outcome(found, self.tally, self.settings, _NOUN)

    def _plant(self, root: Root) -> None:
        """One subproblem per open clause."""
        count, width = self.clauses.index.shape
        table = torch.cat(
            [root.alphas[span.activation][0, :, 0] for span in self.features.spans]
            or [root.box.lower.new_zeros(root.rows.num_rows, 0)],
            dim=-1,
        )
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
                betas=torch.zeros(count, width, 0, dtype=table.dtype),
                alphas=table[self.clauses.index].cpu(),
                margin=margin,
            )
        )

    def _round(self) -> None:
        """Take a batch, decide its leaves, split and bound the rest, keep what is open."""
        batch = self.pool.take(self.settings.batch_size)
        signs = self.bounding.signs(batch)
        is_open = self.features.open(signs)
        leaves = ~is_open.any(dim=1).cpu()
        if bool(leaves.any()):
            found = self._leaves(batch.select(leaves))
            if found is not None:
                self.tally = replace(self.tally, counterexample=found)
                return
            batch, is_open = batch.select(~leaves), is_open[~leaves]
        if batch.count == 0:
            return
        scores, points = self._look(batch, is_open)
        found = self.context.try_points(points)
        if found is not None:
            self.pool.add(batch)
            self.tally = replace(self.tally, counterexample=found)
            return
        children = self._split(batch, scores, is_open)
        children = self.bounding.optimize(
            children, self.settings.beta, stop_early=not self.settings.synchronous
        )
        self.tally = replace(
            self.tally,
            rounds=self.tally.rounds + 1,
            visited=self.tally.visited + children.count,
        )
        self.pool.add(children.select(~(children.margin > 0)))

    def _count(self) -> None:
        """Bring the tally up to date with the pool, and report."""
        self.tally = replace(
            self.tally,
            waiting=len(self.pool),
            worst_margin=min(self.pool.worst_margin, self.stuck_margin),
            pool_bytes=self.pool.num_bytes,
        )
        self.context.say(stop.status(self.tally, _NOUN, time.monotonic() - self.start))

    def _look(self, batch: DomainBatch, is_open: Tensor) -> tuple[branching.Scores, np.ndarray]:
        """Scores of a batch's features, and the inputs that minimise its bounds."""
        tables: list[dict[int, Tensor]] = []
        attained: list[dict[int, Tensor]] = []
        slopes: list[dict[int, Tensor]] = []
        points = []
        box = self.bounding.root.box
        for part in self.bounding.parts(batch):
            seen: dict[int, Tensor] = {}
            problem = self.bounding.subproblems(part, self.bounding.signs(part))
            probes = {
                index: torch.zeros_like(alpha[0]).requires_grad_(True)
                for index, alpha in problem.alphas.items()
            }
            lower = problem.lower(problem.relaxations(), seen.__setitem__, probes)
            values = torch.autograd.grad(lower.sum(), list(probes.values()), allow_unused=True)
            margins = lower.detach().double() - self.bounding.thresholds(part)
            row = margins.nan_to_num(nan=-torch.inf).argmax(dim=0)
            every = torch.arange(part.count, device=row.device)
            own = {index: table.detach().flatten(2)[row, every] for index, table in seen.items()}
            at_input = own.pop(0, None)
            if at_input is not None:
                center, radius = box.center.flatten(1), box.radius.flatten(1)
                points.append(center - at_input.sign() * radius)
            tables.append(own)
            attained.append(
                {
                    index: (torch.zeros_like(probe) if value is None else value)[row, every]
                    for (index, probe), value in zip(probes.items(), values, strict=True)
                }
            )
            slopes.append({index: a[0][row, every] for index, a in problem.alphas.items()})
        scores = branching.score(
            self.features, _joined(tables), _joined(attained), _joined(slopes), is_open
        )
        stacked = torch.cat(points) if points else box.lower.flatten(1)[:0]
        return scores, stacked.cpu().numpy()

    def _split(self, batch: DomainBatch, scores: branching.Scores, is_open: Tensor) -> DomainBatch:
        """Children of every subproblem; ``2^k`` each, k > 1 while the pool is small."""
        settings = self.settings

        def evaluate(feature: Tensor, side: Tensor) -> Tensor:
            return self.bounding.evaluate(_child(batch, feature.cpu(), side.cpu()))

        first = branching.choose(
            scores,
            settings.method,
            settings.candidates,
            settings.reduceop,
            evaluate,
            self.generator,
        )
        levels = 1
        fewest = int(is_open.sum(dim=1).min())
        while levels < fewest and batch.count << (levels + 1) <= 2 * settings.batch_size:
            levels += 1
        chosen = branching.several(scores, first, levels).cpu()
        children = [batch]
        for level in range(levels):
            feature = chosen[:, level]
            children = [
                _child(child, feature, torch.full_like(feature, side))
                for child in children
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


def _child(batch: DomainBatch, feature: Tensor, side: Tensor) -> DomainBatch:
    """Every subproblem of a batch with one more split, its multiplier zero."""
    split = ((feature + 1) * side).to(torch.int32).unsqueeze(1)
    wide = batch.widen(int(batch.depth.max()) + 1)
    # A 64-bit congruential mix; equal paths give equal ids on every rank and run.
    path = batch.path * 6364136223846793005 + (2 * feature + (side > 0) + 1) * 1442695040888963407
    return replace(
        wide,
        path=path,
        depth=batch.depth + 1,
        splits=wide.splits.scatter(1, batch.depth.unsqueeze(1), split),
    )


def _joined(tables: list[dict[int, Tensor]]) -> dict[int, Tensor]:
    """One table per activation for the whole batch, from the tables of its parts."""
    return {index: torch.cat([table[index] for table in tables]) for index in tables[0]}
