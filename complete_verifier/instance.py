"""Verify one instance: attack, bounds, branch and bound, region by region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from auto_LiRPA_patches.engine.subproblems import splittable
from auto_LiRPA_patches.errors import NonFiniteBoundError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.row_share import RowShare
from complete_verifier.attack.counterexample import Counterexample, confirm
from complete_verifier.attack.search import attack_specification
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.refined_branching import branch_and_refine
from complete_verifier.bab.region_group import RegionGroup, region_groups
from complete_verifier.bounds.certain import possible
from complete_verifier.bounds.incomplete import RegionBounds, RegionVerification
from complete_verifier.bounds.memory import alpha_limit, memory_limit, memory_used, pool_limit
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.clock import Clock
from complete_verifier.effort import Effort
from complete_verifier.model.double import run_double
from complete_verifier.model.network import Network
from complete_verifier.model.replay import run_onnx
from complete_verifier.results.record import BranchAndBound
from complete_verifier.results.verdict import Verdict
from complete_verifier.session import Session
from complete_verifier.specification import Region, Specification

# Where inputs are split networks are small; a larger one's weights stay shared, and every rank
# follows the whole tree.
_MOST_WHOLE_BYTES = 256 << 20
_WINDOW_REASON = "inputs without bounds are searched within a window, and nothing is proven of them"


@dataclass(frozen=True)
class Outcome:
    """What is known of an instance at its end.

    Attributes:
        verdict: what follows.
        reason: why, in one sentence.
        counterexample: confirmed, for `sat`.
        regions: what bounds found, per region worked on.
        attack_seconds, bound_seconds, bab_seconds: wall time of the phases.
        bab: branch and bound of the regions that needed it, summed up.
    """

    verdict: Verdict
    reason: str
    counterexample: Counterexample | None = None
    regions: tuple[RegionBounds, ...] = ()
    attack_seconds: float = 0.0
    bound_seconds: float = 0.0
    bab_seconds: float = 0.0
    bab: BranchAndBound = BranchAndBound()


@dataclass(frozen=True)
class _Search:
    """A tree of branch and bound.

    Attributes:
        region: its region, or one of them.
        bounds: what is known of it; not needed where inputs are split.
        group: the regions whose inputs are split together; None where activations are.
    """

    region: Region
    bounds: RegionBounds | None = None
    group: RegionGroup | None = None


class InstanceRun:
    """One instance with its clock; the phases share what they found through `Outcome`."""

    def __init__(
        self,
        session: Session,
        network: Network,
        specification: Specification,
        effort: Effort,
        clock: Clock,
        progress: Callable[[str], None],
    ) -> None:
        self._session = session
        self._network = network
        self._specification = possible(specification, network.graph)
        self._effort = effort
        self._clock = clock
        self._progress = progress
        self._verifications: dict[int, RegionVerification] = {}
        self._events: list[str] = []

    @property
    def events(self) -> tuple[str, ...]:
        """What happened on this rank that the outcome does not show, each thing once."""
        return tuple(dict.fromkeys(self._events))

    def run(self) -> Outcome:
        """Attack and bound in the configured order; the first decision ends the instance."""
        found = Outcome(Verdict.UNKNOWN, "bounds leave the property open")
        phases = {
            # A region that plain bounds prove needs no attack, and they cost far less than one.
            "before": (self._glance, self._attack, self._bound),
            "after": (self._bound, self._attack),
        }
        for phase in (*phases.get(self._effort.order, (self._bound,)), self._branch):
            found = phase(found)
            if found.verdict is not Verdict.UNKNOWN:
                return found
            if self._clock.out_of_time():
                return replace(found, verdict=Verdict.TIMEOUT, reason=self._timeout_reason())
        return found

    def _attack(self, found: Outcome) -> Outcome:
        start = self._clock.seconds()
        result = attack_specification(
            self._network.forward,
            self._unproven(),
            self._effort.attack,
            self._effort.seed,
            self._confirm,
            out_of_time=self._clock.out_of_time,
            device=self._session.device,
        )
        found = replace(found, attack_seconds=self._clock.seconds() - start)
        if result.counterexample is None:
            self._progress(f"attack: no counterexample, closest margin {result.best_margin:.6g}")
            return found
        return replace(
            found,
            verdict=Verdict.SAT,
            reason=_sat_reason(result.counterexample),
            counterexample=result.counterexample,
        )

    def _unproven(self) -> Specification:
        """The specification without the clauses that a glance excluded: no attack can meet them."""
        regions = list(self._specification.regions)
        for number, verification in self._verifications.items():
            with suppress(NonFiniteBoundError):  # `_bound` meets it again and tells
                regions[number] = verification.remaining()
        return replace(self._specification, regions=tuple(regions))

    def _confirm(self, region: Region, point: np.ndarray) -> Counterexample | None:
        """Replay a candidate on rank 0 and tell the others, so that all go the same way."""
        return self._replayed(self._session.ranks.world, region, point)

    def _confirm_alone(self, region: Region, point: np.ndarray) -> Counterexample | None:
        """Replay a candidate that other ranks do not have; they learn of it after the round.

        Ranks that share layers have it all, and go by the first of them.
        """
        return self._replayed(self._session.ranks.tp, region, point)

    def _replayed(
        self, group: Communicator, region: Region, point: np.ndarray
    ) -> Counterexample | None:
        """What the first rank of a group makes of a candidate; the same on all of its ranks."""
        found: Counterexample | None = None
        if group.rank == 0 and self._network.onnx_path is not None:
            shape = self._network.onnx_input_shape
            found = confirm(
                self._network.onnx_path,
                region,
                point,
                partial(run_onnx, input_shape=shape),
                partial(run_double, input_shape=shape),
            )
        agreed: Counterexample | None = group.broadcast_object(found)
        return agreed

    def _partners(self, *, inputs: bool) -> Partners:
        """The ranks that share a region's subproblems. A collective.

        Args:
            inputs: boxes are split. What is computed of them differs from rank to rank, layer by
                layer, so that ranks can share them only where each reads weights by itself or has
                them all.
        """
        ranks, parallel = self._session.ranks, self._session.config.parallel
        weights = self._network.graph.weights
        apart = not parallel.fsdp or weights.may_part()
        too_large = inputs and not apart and weights.full_bytes > _MOST_WHOLE_BYTES
        if not parallel.shard_domains or too_large:
            # Alone with the subproblems, but others may use the layers together with this rank.
            followed = ranks.tp.size > 1 or (bool(parallel.fsdp) and ranks.data.size > 1)
            return replace(Partners.alone(), layers_split=followed)
        in_step = Communicator.single("weights") if apart or inputs else ranks.data
        return Partners(ranks.data, in_step, layers_split=ranks.tp.size > 1)

    def _glance(self, found: Outcome) -> Outcome:
        """The first bounds of every region, kept for `_bound`; decides only if they prove all."""
        if not self._effort.incomplete:
            return found
        start = self._clock.seconds()
        proven = True
        for number in range(len(self._specification.regions)):
            try:
                proven = self._verification(number).first().proven and proven
            except NonFiniteBoundError:
                proven = False  # `_bound` meets it again and tells
            if not proven:
                break
        found = replace(found, bound_seconds=self._clock.seconds() - start)
        if not proven:
            return found
        regions = tuple(self._verifications[n].first() for n in sorted(self._verifications))
        return replace(
            found,
            verdict=Verdict.UNSAT,
            reason=_proof_reason(regions),
            regions=regions,
        )

    def _verification(self, number: int) -> RegionVerification:
        """The bounds of one region, started once."""
        if number not in self._verifications:
            settings = self._bound_settings(self._effort.bounds)
            bounds = replace(settings.bounds, row_share=RowShare(self._session.row_ranks))
            self._verifications[number] = RegionVerification(
                self._network,
                self._specification.regions[number],
                replace(
                    settings,
                    bounds=bounds,
                    starves_together=self._session.row_ranks.size == self._session.ranks.world.size,
                ),
            )
        return self._verifications[number]

    def _bound(self, found: Outcome) -> Outcome:
        if not self._effort.incomplete and self._effort.branching is None:
            return replace(found, reason="incomplete verification is turned off")
        start = self._clock.seconds()
        regions: list[RegionBounds] = []
        verdict, first_open = Verdict.UNSAT, ""
        for number in range(len(self._specification.regions)):
            try:
                bounds = self._verification(number).finish()
            except NonFiniteBoundError as error:
                bounds, reason = RegionBounds(proven=False), str(error)
            else:
                reason = "" if bounds.proven else self._open_reason(bounds, number)
            self._verifications.pop(number, None)  # its relaxations are not needed any more
            regions.append(bounds)
            if not bounds.proven:
                verdict, first_open = Verdict.UNKNOWN, first_open or reason
                if self._effort.branching is None:
                    break
        return replace(
            found,
            verdict=verdict,
            reason=first_open or _proof_reason(regions),
            regions=tuple(regions),
            bound_seconds=found.bound_seconds + self._clock.seconds() - start,
        )

    def _branch(self, found: Outcome) -> Outcome:
        """Branch and bound on each region that bounds left open."""
        settings = self._effort.branching
        if settings is None:
            return found
        start = self._clock.seconds()
        total = BranchAndBound()
        pairs = zip(self._specification.regions, found.regions, strict=False)
        left = [(region, bounds) for region, bounds in pairs if not bounds.proven]
        undecided = _WINDOW_REASON if any(region.windowed for region, _ in left) else ""
        for search in self._searches([pair for pair in left if not pair[0].windowed]):
            outcome = self._branch_region(search, settings)
            if outcome is None:
                return found
            total = _added(total, outcome)
            found = replace(found, bab=total, bab_seconds=self._clock.seconds() - start)
            if outcome.ending is Ending.VIOLATED:
                return replace(
                    found,
                    verdict=Verdict.SAT,
                    reason="counterexample found in branch and bound, replayed with onnxruntime",
                    counterexample=outcome.counterexample,
                )
            if outcome.ending is not Ending.PROVEN and not undecided:
                undecided = f"branch and bound ended: {outcome.reason}"
            if outcome.ending is Ending.TIMEOUT:
                break
        if undecided:
            return replace(found, reason=undecided)
        return replace(
            found,
            verdict=Verdict.UNSAT,
            reason=f"branch and bound, {total.domains_visited} subproblems",
        )

    def _searches(self, left: Sequence[tuple[Region, RegionBounds]]) -> list[_Search]:
        """How the regions that bounds left open are branched on."""
        if self._effort.splits_inputs(self._network.num_inputs, splittable(self._network.graph)):
            groups = region_groups(region for region, _ in left)
            return [_Search(group.regions[0], group=group) for group in groups]
        return [_Search(*pair) for pair in left]

    def _branch_region(self, search: _Search, settings: BabSettings) -> BabOutcome | None:
        """One search; None where it cannot start."""
        graph, ranks = self._network.graph, self._session.ranks
        inputs = search.group is not None
        partners = self._partners(inputs=inputs)
        shared = partners.pool.size > 1
        options = self._bound_settings(self._effort.bounds, alpha_share=1.0).bounds
        clock = self._clock
        if shared and not partners.in_step:
            # Within a round only the ranks that share layers do the same.
            clock = clock.among(ranks.tp)
            options = replace(options, out_of_time=clock.out_of_time, alone=ranks.tp.size == 1)
        context = BabContext(
            network=self._network,
            region=search.region,
            bounds=options,
            confirm=self._confirm_alone if shared else self._confirm,
            partners=partners,
            pool_limit_bytes=pool_limit(
                self._session.launch.local_world_size, self._session.ranks.world
            ),
            memory_used=lambda: memory_used(self._session.device, self._session.ranks.world),
        )
        if inputs:
            with partners.apart(graph.weights):
                manner = self._effort.input_split
                return input_branch_and_bound(context, manner, settings, search.group)
        root = None if search.bounds is None else search.bounds.root
        if root is None:
            return None
        passes, portion = self._effort.refinements(graph), clock.portion
        outcome = branch_and_refine(
            root, context, settings, passes, lambda share: portion(share).out_of_time
        )
        root.graph.weights.settle()  # it may have weights of its own
        return outcome

    def _bound_settings(
        self, settings: BoundSettings, alpha_share: float | None = None
    ) -> BoundSettings:
        clock = self._clock
        share = self._effort.alpha_share if alpha_share is None else alpha_share
        if settings.method == "alpha-crown" and share < 1.0:
            clock = clock.portion(share)
        limit = memory_limit(
            self._session.device, self._session.launch.local_world_size, self._session.ranks.world
        )
        options = replace(
            settings.bounds,
            memory_bytes=limit,
            alpha_bytes=alpha_limit(
                self._session.device,
                self._session.launch.local_world_size,
                self._session.ranks.world,
            ),
            out_of_time=clock.out_of_time,
            progress=self._progress,
            alone=not self._session.config.parallel.fsdp and self._session.ranks.tp.size == 1,
            told=self._events.append,
        )
        return replace(settings, bounds=options)

    def _open_reason(self, bounds: RegionBounds, number: int) -> str:
        if bounds.starved:
            return bounds.starved
        if self._specification.regions[number].windowed:
            return _WINDOW_REASON
        method = "α-CROWN" if bounds.alpha_crown else "the first bounds"
        where = f" in region {number + 1}" if len(self._specification.regions) > 1 else ""
        worst = "" if bounds.worst_margin is None else f", worst margin {bounds.worst_margin:.6g}"
        ended = "time for bounds ran out, and they" if bounds.timed_out else "bounds"
        return f"{ended} leave the property open{where} ({method}{worst})"

    def _timeout_reason(self) -> str:
        return f"the time limit of {self._clock.limit_seconds:g} s was reached"


def _proof_reason(regions: Sequence[RegionBounds]) -> str:
    margins = [own.worst_margin for own in regions if own.worst_margin is not None]
    worst = f", worst margin {min(margins):.6g}" if margins else ""
    return f"bounds exclude every violation{worst}"


def _sat_reason(counterexample: Counterexample) -> str:
    reason = "counterexample found by attack, replayed with onnxruntime"
    rounded = counterexample.num_rounded_inputs
    if rounded:
        reason += f"; {rounded} inputs fixed to numbers no float32 equals were rounded"
    return reason


def _added(total: BranchAndBound, outcome: BabOutcome) -> BranchAndBound:
    """The counters of all regions so far, and the smallest lower bound."""
    before = float("inf") if total.lower_bound is None else total.lower_bound
    return BranchAndBound(
        rounds=total.rounds + outcome.rounds,
        domains_visited=total.domains_visited + outcome.domains_visited,
        domains_left=total.domains_left + outcome.domains_left,
        lower_bound=min(before, outcome.lower_bound),
    )
