"""Branch on every neuron of a layer at once: each round splits each bound's worst subproblem."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.bab import branching
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.children import child
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.look import look
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.probe import ReluProbe
from complete_verifier.bounds.root import Root

_CANDIDATES = 2


@dataclass(frozen=True, kw_only=True)
class TreeEffort:
    """How far a layer's neurons are branched on.

    Attributes:
        rounds: splits of each bound's worst subproblem.
        first: the optimisation of α before the first split.
        beta: that of α and β after each split.
        synchronous: see `bab.force_synchronous`.
    """

    rounds: int
    first: BetaOptions
    beta: BetaOptions
    synchronous: bool


class NeuronTree:
    """The subproblems of a root whose clauses have one row each: together they cover its box.

    A bound is the smallest over its clause's subproblems, so only splitting the worst one raises
    it. One that exceeds its threshold is good enough: the neuron is stable then.
    """

    def __init__(
        self, root: Root, options: BoundOptions, partners: Partners, effort: TreeEffort
    ) -> None:
        """Start with one subproblem per clause.

        Args:
            root: ReLU network, one row per clause, every clause open.
            options: memory and clock.
            partners: where they compute in step, all ranks have the same root.
            effort: rounds and steps.
        """
        self._features = Features.of(root)
        self._clauses = OpenClauses.of(root, 0.0)
        self._bounding = Bounding(
            root,
            self._features,
            self._clauses,
            options,
            in_tiles=effort.synchronous,
            partners=partners,
        )
        self._late = options.out_of_time
        self._most = partners.weights.agree_max
        self._effort = effort
        self._leaves = self._bounding.undivided()

    def run(self) -> Tensor:
        """Bounds ``[num_clauses]`` float64, threshold and slack taken off; never below the root's.

        Claim: ``row_c . f(x) - threshold_c >= result_c`` for every x of the box.
        """
        self._leaves = self._bounding.optimize(self._leaves, self._effort.first, stop_early=False)
        for _ in range(self._effort.rounds):
            if self._late(0.0) or not self._round():
                break
        return self._worst()[0]

    def _worst(self) -> tuple[Tensor, Tensor]:
        """Per clause the smallest margin, and the subproblem that has it."""
        order = self._leaves.margin.argsort(descending=True, stable=True)
        # Of writes to one place the last stays: in this order, the smallest margin's.
        place = order.argsort()
        last = torch.zeros(self._clauses.index.shape[0], dtype=torch.int64)
        last.scatter_reduce_(0, self._leaves.clause, place, "amax", include_self=False)
        picked = order[last]
        return self._leaves.margin[picked], picked

    def _round(self) -> bool:
        """Split the worst subproblem of every clause not excluded yet; False if there is none."""
        margin, picked = self._worst()
        picked = picked[~(margin > 0)]
        batch = self._leaves.select(picked)
        if batch.count == 0:
            return False
        is_open = self._bounding.splittable(batch)
        can_split = is_open.any(dim=1)
        picked, batch = picked[can_split.cpu()], batch.select(can_split.cpu())
        if batch.count == 0:
            return False
        children = self._bounding.optimize(
            self._split(batch, is_open[can_split]), self._effort.beta, stop_early=False
        )
        others = torch.ones(self._leaves.count, dtype=torch.bool)
        others[picked] = False
        self._leaves = DomainBatch.concatenate([self._leaves.select(others), children])
        return True

    def _split(self, batch: DomainBatch, is_open: Tensor) -> DomainBatch:
        scores, _ = look(self._bounding, batch, is_open)
        feature = branching.choose(
            scores,
            "kfsb",
            _CANDIDATES,
            "min",
            ReluProbe(self._bounding, batch).margins,
            lambda: scores.babsr,
            self._most,
        ).cpu()
        above = torch.ones_like(feature)
        return DomainBatch.concatenate(
            [child(batch, feature, above), child(batch, feature, -above)]
        )
