"""What a run shows and writes: verdict lines, files, the summary. Rank 0 alone does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.save import (
    counterexample_path,
    format_counterexample,
    write_counterexample,
)
from complete_verifier.instance import Outcome
from complete_verifier.queries import Query
from complete_verifier.results.errors import ResultError
from complete_verifier.results.in_progress import CurrentFile, current_path
from complete_verifier.results.progress import Printer
from complete_verifier.results.record import Record
from complete_verifier.results.record_file import RecordFile
from complete_verifier.results.results_file import ResultsFile
from complete_verifier.results.summary import format_summary, verdict_line
from complete_verifier.resume import Earlier
from complete_verifier.session import Session

logger = logging.getLogger(__name__)


class Output:
    """Files and terminal of one run; every method does nothing on ranks that do not speak."""

    def __init__(self, session: Session, num_instances: int, earlier: Earlier) -> None:
        """Create the files, so that a place that cannot be written to shows at once.

        Args:
            num_instances: of this run, those that `earlier` answers included.
            earlier: what is kept of an earlier run; it is in the files from the start.

        Raises:
            ResultError: a file cannot be written.
        """
        general = session.config.general
        batch = bool(general.csv_name) or session.config.asks_about_data
        self._session = session
        self._count = num_instances
        self._earlier = earlier
        self._batch = batch
        self._printer = Printer(session.speaks)
        self._all_written = True
        self._records: RecordFile | None = None
        self._results: ResultsFile | None = None
        current = None
        if session.speaks:
            kept = earlier.records
            if general.result_json:
                self._records = RecordFile(general.result_json, kept.values())
            if general.results_file:
                self._results = ResultsFile(general.results_file, batch=batch, kept=kept)
            if batch:
                current = current_path(general.result_json, general.results_file)
        self._current = CurrentFile(current)

    @property
    def all_written(self) -> bool:
        """Whether every file was written so far; True on ranks that write none."""
        return self._all_written

    def announce(self) -> None:
        """Say what runs where, and which keys have no effect."""
        session = self._session
        if not session.speaks:
            return
        mesh, parallel = session.ranks.mesh, session.config.parallel
        mode = "weights sharded (fsdp)" if parallel.fsdp else "weights replicated"
        if mesh.tp > 1:
            mode += f", neurons split over {mesh.tp} ranks (tp)"
        if parallel.shard_specs and mesh.data > 1:
            mode += ", rows shared (shard_specs)"
        if parallel.shard_domains and mesh.data > 1:
            mode += ", subproblems shared (shard_domains)"
        self._printer.line(
            f"{self._count} instance(s) on {mesh.world_size} rank(s), {session.device}, {mode}"
        )
        if session.loaded.resume:
            kept = len(self._earlier.records)
            self._printer.line(f"resume: {kept} of {self._count} are answered already and skipped")
        for line in (*self._earlier.warnings, *session.loaded.warnings):
            logger.warning("%s", line)
        if mesh.tp > 1 and parallel.tp_intermediate == "ibp":
            logger.warning(
                "parallel.tp_intermediate: ibp bounds neurons of split layers by intervals, which "
                "is looser than exact, the more so the deeper the network."
            )
        origin = session.loaded.origins.get("bab.timeout")
        if self._batch and origin is not None and session.config.bab.override_timeout is None:
            logger.warning(
                "bab.timeout (%s) is not used: each instance of a batch has its own timeout in the "
                "CSV file. Set bab.override_timeout to replace them.",
                origin,
            )

    @contextmanager
    def in_progress(self, query: Query) -> Iterator[None]:
        """Leave a trace of `query` for as long as nothing is known of its end.

        The trace stays where the process dies, or ends for a reason that has to do with `query`.
        """
        self._attempt(lambda: self._current.begin(query.index, query.network, query.property))
        try:
            yield
        except KeyboardInterrupt:
            self._attempt(self._current.end)
            raise

    def add(self, number: int, query: Query, record: Record, outcome: Outcome | None) -> Record:
        """Write one instance's result everywhere it belongs, and say it.

        A file that can no longer be written (a full disk) costs neither the verdict nor the
        instances still to come; see `all_written`.
        """
        if not self._session.speaks:
            return record
        text = ""
        if outcome is not None and outcome.counterexample is not None:
            text = format_counterexample(outcome.counterexample)
            record = replace(record, counterexample=self._save(query, outcome.counterexample))
        records, results = self._records, self._results
        if records is not None:
            self._attempt(lambda: records.add(record))
        if results is not None:
            self._attempt(lambda: results.add(query.index, record, text))
        self._attempt(self._current.end)
        self._printer.line(verdict_line(number, self._count, record))
        return record

    def summarise(self, records: Sequence[Record], indices: Sequence[int]) -> None:
        """Print the summary; its last line states the verdict."""
        if not self._session.speaks:
            return
        for place in (self._records, self._results):
            if place is not None:
                self._printer.line(f"Results: {place.path}")
        self._printer.line(format_summary(records, indices))

    def _save(self, query: Query, counterexample: Counterexample) -> str | None:
        """Write the counterexample's file; returns its path, None if it could not be written."""
        config = self._session.config
        path = counterexample_path(config.attack.cex_path, query.index, batch=self._batch)
        written = self._attempt(lambda: write_counterexample(path, counterexample))
        if config.general.show_adv_example:
            self._printer.line(format_counterexample(counterexample).rstrip())
        return str(path) if written else None

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except ResultError as error:
            logger.error("%s", error)
            self._all_written = False
            return False
        return True
