"""Work through the instances of a run; write each result as it is known."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auto_LiRPA_patches.errors import RankMismatchError, VerifierError
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.clock import Clock
from complete_verifier.config import automatic
from complete_verifier.effort import Effort, effort
from complete_verifier.instance import InstanceRun, Outcome
from complete_verifier.model.network import Network
from complete_verifier.network_cache import NetworkCache
from complete_verifier.output import Output
from complete_verifier.queries import Query, queries
from complete_verifier.reading import read_instance
from complete_verifier.results.in_progress import GivenUp, read_given_up
from complete_verifier.results.progress import Progress
from complete_verifier.results.record import (
    Bounds,
    Memory,
    Parallel,
    Parameters,
    Record,
    Seconds,
)
from complete_verifier.results.verdict import Verdict, exit_code
from complete_verifier.results.versions import collect_versions
from complete_verifier.resume import earlier_results
from complete_verifier.session import Session

logger = logging.getLogger(__name__)


def run_queries(session: Session) -> int:
    """Verify every instance of the config; returns the exit code, 1 if a file was not written."""
    asked = queries(session.config, session.loaded, session.scratch)
    session.ranks.world.agree_same("the list of instances", _list_digest(asked))
    given_up = read_given_up(session.loaded.given_up)
    earlier = earlier_results(session, asked)
    output = Output(session, len(asked), earlier)
    output.announce()
    runner = Runner(session)
    records = []
    for number, query in enumerate(asked, start=1):
        kept = earlier.records.get(query.index)
        if kept is not None:
            records.append(kept)
            continue
        with output.in_progress(query):
            lost = given_up.get(query.index)
            finished = runner.finish(query) if lost is None else runner.give_up(query, lost)
            records.append(output.add(number, query, finished.record, finished.outcome))
    output.summarise(records, [query.index for query in asked])
    return exit_code(record.verdict for record in records) or int(not output.all_written)


@dataclass(frozen=True)
class Finished:
    """One instance at its end; `outcome` is None where it ended in an error."""

    record: Record
    outcome: Outcome | None


class Runner:
    """Verifies instances one by one; what stays the same for all of them is kept here."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._networks = NetworkCache(session)
        config, mesh = session.config.parallel, session.ranks.mesh
        self._parallel = Parallel(
            world_size=mesh.world_size,
            data=mesh.data,
            tp=mesh.tp,
            fsdp=config.fsdp,
            shard_specs=session.row_ranks.size > 1,
            shard_domains=config.shard_domains is True and mesh.data > 1,
        )
        self._template = Record(
            onnx="",
            vnnlib="",
            verdict=Verdict.ERROR,
            ignored=session.loaded.ignored,
            config_hash=session.loaded.hash,
            parallel=self._parallel,
            versions=collect_versions(),
        )

    def give_up(self, query: Query, lost: GivenUp) -> Finished:
        """Record an instance that an earlier process did not survive."""
        seconds = Seconds(total=lost.seconds)
        record = replace(self._record(query), reason=lost.reason, seconds=seconds)
        return Finished(record, None)

    def finish(self, query: Query) -> Finished:
        """Verify one instance; what goes wrong with it alone becomes its `error`.

        With several ranks an unexpected exception ends the run: the other ranks may be waiting in
        a collective that this one will never reach. Bad input is met by all of them alike.
        """
        start = time.monotonic()
        record = self._record(query)
        try:
            return self.verify(query, record)
        except RankMismatchError:
            raise
        except VerifierError as error:
            reason = str(error)
        except Exception as error:
            if self._session.ranks.world.size > 1:
                self._networks.explain(error)
                raise
            logger.exception("instance %d: internal error", query.index)
            reason = f"internal error: {type(error).__name__}: {error}"
            self._networks.forget()
        seconds = Seconds(total=time.monotonic() - start)
        return Finished(replace(record, reason=reason, seconds=seconds), None)

    def verify(self, query: Query, record: Record | None = None) -> Finished:
        """Verify one instance; every failure is raised.

        Args:
            record: what is known of the instance already.

        Raises:
            VerifierError: network or property cannot be read or are not supported.
        """
        record = self._record(query) if record is None else record
        world = self._session.ranks.world
        clock = Clock(query.timeout_seconds, world)
        network, specification = read_instance(query, self._networks, world)
        load_seconds = clock.seconds()
        progress = Progress(logger, self._session.speaks)
        run = InstanceRun(
            self._session, network, specification, self._effort(network), clock, progress.report
        )
        weights = network.graph.weights
        weights.settle()
        outcome, memory = self._measured(run, weights)
        weights.settle()
        parallel = replace(self._parallel, parameters=self._parameters(weights))
        return Finished(
            replace(
                record,
                verdict=outcome.verdict,
                reason=outcome.reason,
                seconds=Seconds(
                    load=load_seconds,
                    attack=outcome.attack_seconds,
                    initial_bounds=outcome.bound_seconds,
                    bab=outcome.bab_seconds,
                    total=clock.seconds(),
                ),
                bounds=_bounds(outcome),
                bab=outcome.bab,
                memory=memory,
                parallel=parallel,
                events=self._events(run),
            ),
            outcome,
        )

    def forget(self) -> None:
        """Let go of the network held."""
        self._networks.forget()

    def abandon(self) -> None:
        """The same after a failure, without a word to other ranks."""
        self._networks.abandon()

    def _record(self, query: Query) -> Record:
        """What is known of an instance before it runs."""
        return replace(self._template, onnx=query.network, vnnlib=query.property)

    def _effort(self, network: Network) -> Effort:
        """The config's budgets, with what `auto` chooses for this network."""
        session = self._session
        config, notes = automatic(session.config, session.loaded.origins, network.num_inputs)
        for note in notes:
            logger.debug("%s: %s (%s)", note.key, note.value, note.reason)
        return effort(config)

    def _measured(self, run: InstanceRun, weights: WeightSource) -> tuple[Outcome, Memory]:
        """Run an instance, and count its bytes where that is asked for.

        The network is loaded before: torch traces other graphs while the meter watches.
        """
        if not self._session.config.general.measure_memory:
            return run.run(), Memory()
        with MemoryMeter(self._session.device) as meter:
            meter.track(*weights.held(), kind=MemoryKind.WEIGHTS)
            meter.mark_baseline()
            outcome = run.run()
        world = self._session.ranks.world
        kinds = tuple(meter.peak_by_kind)
        names = [kind.value for kind in kinds]
        baseline = world.all_gather_integers(
            "baseline memory", [meter.baseline_by_kind[kind] for kind in kinds]
        )
        peak = world.all_gather_integers(
            "peak memory", [meter.peak_by_kind[kind] for kind in kinds]
        )
        return outcome, Memory(
            baseline_bytes=tuple(map(sum, baseline)),
            peak_bytes=tuple(map(sum, peak)),
            baseline_by_kind=tuple(dict(zip(names, row, strict=True)) for row in baseline),
            peak_by_kind=tuple(dict(zip(names, row, strict=True)) for row in peak),
        )

    def _events(self, run: InstanceRun) -> tuple[str, ...]:
        """All ranks' events, with the rank where there are several."""
        world = self._session.ranks.world
        told = enumerate(world.all_gather_object(run.events))
        single = world.size == 1
        return tuple(e if single else f"rank {rank}: {e}" for rank, own in told for e in own)

    def _parameters(self, weights: WeightSource) -> Parameters:
        held = self._session.ranks.world.all_gather_integers("parameters", [weights.local_bytes])
        return Parameters(
            full_bytes=weights.full_bytes, bytes_per_rank=tuple(value for (value,) in held)
        )


def _list_digest(asked: Sequence[Query]) -> str:
    """Names rather than paths: hosts may keep the same files in different places."""
    lines = (
        f"{q.index} {Path(q.network).name} {Path(q.property).name} {q.timeout_seconds!r}\n"
        for q in asked
    )
    return f"SHA-256 {hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _bounds(outcome: Outcome) -> Bounds:
    """The margins of all regions, one after the other."""
    return Bounds(
        crown=tuple(margin for region in outcome.regions for margin in region.crown),
        alpha_crown=tuple(margin for region in outcome.regions for margin in region.alpha_crown),
    )
