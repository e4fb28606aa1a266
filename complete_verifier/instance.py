"""Verify one instance: attack, then bounds, region by region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from auto_LiRPA_patches.errors import NonFiniteBoundError
from complete_verifier.attack.counterexample import Counterexample, confirm
from complete_verifier.attack.search import attack_specification
from complete_verifier.bounds.incomplete import RegionBounds, verify_region
from complete_verifier.bounds.memory import memory_limit
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.clock import Clock
from complete_verifier.effort import Effort
from complete_verifier.model.network import Network
from complete_verifier.model.replay import run_onnx
from complete_verifier.results.verdict import Verdict
from complete_verifier.session import Session
from complete_verifier.specification import Region, Specification


@dataclass(frozen=True)
class Outcome:
    """What is known of an instance at its end.

    Attributes:
        verdict: what follows.
        reason: why, in one sentence.
        counterexample: confirmed, for `sat`.
        regions: what bounds found, per region worked on.
        attack_seconds, bound_seconds: wall time of the phases.
    """

    verdict: Verdict
    reason: str
    counterexample: Counterexample | None = None
    regions: tuple[RegionBounds, ...] = ()
    attack_seconds: float = 0.0
    bound_seconds: float = 0.0


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
        self._specification = specification
        self._effort = effort
        self._clock = clock
        self._progress = progress

    def run(self) -> Outcome:
        """Attack and bound in the configured order; the first decision ends the instance."""
        found = Outcome(Verdict.UNKNOWN, "bounds leave the property open")
        phases = {"before": (self._attack, self._bound), "after": (self._bound, self._attack)}
        for phase in phases.get(self._effort.order, (self._bound,)):
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
            self._specification,
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

    def _confirm(self, region: Region, point: np.ndarray) -> Counterexample | None:
        """Replay a candidate on rank 0 and tell the others, so that all go the same way."""
        world = self._session.ranks.world
        found: Counterexample | None = None
        if world.rank == 0 and self._network.onnx_path is not None:
            found = confirm(self._network.onnx_path, region, point, run_onnx)
        agreed: Counterexample | None = world.broadcast_object(found)
        return agreed

    def _bound(self, found: Outcome) -> Outcome:
        if self._effort.bounds is None:
            return replace(found, reason="incomplete verification is turned off")
        start = self._clock.seconds()
        settings = self._bound_settings(self._effort.bounds)
        regions: list[RegionBounds] = []
        verdict, reason = Verdict.UNSAT, "bounds exclude every violation"
        for number, region in enumerate(self._specification.regions):
            try:
                bounds = verify_region(self._network, region, settings)
            except NonFiniteBoundError as error:
                bounds, reason = RegionBounds(proven=False), str(error)
            else:
                reason = reason if bounds.proven else self._open_reason(bounds, number)
            regions.append(bounds)
            if not bounds.proven:
                verdict = Verdict.UNKNOWN
                break
        seconds = self._clock.seconds() - start
        return replace(
            found, verdict=verdict, reason=reason, regions=tuple(regions), bound_seconds=seconds
        )

    def _bound_settings(self, settings: BoundSettings) -> BoundSettings:
        clock = self._clock
        if settings.method == "alpha-crown" and self._effort.alpha_share < 1.0:
            clock = clock.portion(self._effort.alpha_share)
        limit = memory_limit(
            self._session.device, self._session.launch.local_world_size, self._session.ranks.world
        )
        options = replace(
            settings.bounds,
            memory_bytes=limit,
            out_of_time=clock.out_of_time,
            progress=self._progress,
        )
        return replace(settings, bounds=options)

    def _open_reason(self, bounds: RegionBounds, number: int) -> str:
        margins = bounds.alpha_crown or bounds.crown
        method = "α-CROWN" if bounds.alpha_crown else "the first bounds"
        where = f" in region {number + 1}" if len(self._specification.regions) > 1 else ""
        worst = f", worst margin {min(margins):.6g}" if margins else ""
        ended = "time for bounds ran out, and they" if bounds.timed_out else "bounds"
        return f"{ended} leave the property open{where} ({method}{worst})"

    def _timeout_reason(self) -> str:
        return f"the time limit of {self._clock.limit_seconds:g} s was reached"


def _sat_reason(counterexample: Counterexample) -> str:
    reason = "counterexample found by attack, replayed with onnxruntime"
    rounded = counterexample.num_rounded_inputs
    if rounded:
        reason += f"; {rounded} inputs fixed to numbers no float32 equals were rounded"
    return reason
