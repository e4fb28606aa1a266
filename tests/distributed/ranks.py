"""Start ranks for a test: real processes with a real gloo group, torn down whatever happens.

A rank costs seconds to start (it imports torch afresh), so a `RankPool` keeps its processes and
gives each call a new process group. A failed assertion therefore harms no later test; a rank that
hangs or dies does: the pool is then poisoned, its processes killed, and every later call refused
with the name of the culprit, instead of each running into its own timeout.

The function to run is sent as (file, name) and loaded from the file by the rank: test modules are
not importable by name under pytest's importlib mode.
"""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rank_processes import spawn

from auto_LiRPA_patches.sharding.collectives import start, stop
from auto_LiRPA_patches.sharding.mesh import Mesh

_COLLECTIVE_TIMEOUT_SECONDS = 20.0
_DEATH_SECONDS = 5.0
_IMPORT_SECONDS = 120.0
_GO = b"go"


class RankFailure(Exception):  # noqa: N818  named for what happened; a test may expect it
    """A rank raised, died or did not answer; the text holds its number and traceback."""


@dataclass(frozen=True)
class _Job:
    """One call, as sent to one rank."""

    file: str
    name: str
    mesh: Mesh
    rendezvous: str
    collective_timeout: float
    shared_memory: bool
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Report:
    """What one rank sends back; `failed_at` orders failures over ranks (seconds, host clock)."""

    value: Any
    failure: str | None
    failed_at: float


class RankPool:
    """Processes that stay between calls; grows to the largest world asked for."""

    def __init__(self) -> None:
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[connection.Connection] = []
        self._poison: str | None = None

    def run(
        self,
        function: Callable[..., Any],
        world_size: int,
        *arguments: Any,
        tp: int = 1,
        timeout: float = 60,
        collective_timeout: float = _COLLECTIVE_TIMEOUT_SECONDS,
        shared_memory: bool = True,
    ) -> list[Any]:
        """Call `function(ranks, *arguments)` on `world_size` ranks; return their values, by rank.

        Args:
            function: defined at the top of a module; gets the rank's `Ranks` first.
            world_size: number of ranks.
            arguments: picklable; the same for all ranks.
            tp: size of the mesh's tp axis.
            timeout: seconds for the whole call.
            collective_timeout: seconds for one collective.
            shared_memory: whether ranks leave each other messages in memory.

        Raises:
            RankFailure: with the traceback of the rank that failed first.
        """
        if self._poison is not None:
            raise RankFailure(f"not started: the ranks were lost earlier, in {self._poison}")
        self._grow(world_size)
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world_size):
                job = _Job(
                    file=inspect.getfile(function),
                    name=function.__qualname__,
                    mesh=Mesh(world_size, tp, rank),
                    rendezvous=f"file://{folder}/rendezvous",
                    collective_timeout=collective_timeout,
                    shared_memory=shared_memory,
                    arguments=arguments,
                )
                self._pipes[rank].send_bytes(pickle.dumps(job))
            self._start_together(function.__qualname__, world_size)
            reports = self._collect(function.__qualname__, world_size, timeout)
        failures = [(report.failed_at, rank) for rank, report in reports.items() if report.failure]
        if failures:
            rank = min(failures)[1]
            raise RankFailure(f"rank {rank} of {world_size} failed:\n{reports[rank].failure}")
        return [reports[rank].value for rank in range(world_size)]

    def close(self) -> None:
        """Kill all processes; they hold nothing that needs a goodbye."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _grow(self, world_size: int) -> None:
        while len(self._processes) < world_size:
            process, pipe = spawn(_serve)
            self._processes.append(process)
            self._pipes.append(pipe)

    def _start_together(self, name: str, world_size: int) -> None:
        """Let the ranks begin once all have imported what they run: new ones take far longer."""
        for rank, pipe in enumerate(self._pipes[:world_size]):
            if not pipe.poll(_IMPORT_SECONDS):
                self._lose(name, f"rank {rank} was not ready in {_IMPORT_SECONDS:g} s", {})
            try:
                pipe.recv_bytes()
            except (EOFError, OSError):
                self._lose(name, f"rank {rank} died before it began", {})
        for pipe in self._pipes[:world_size]:
            pipe.send_bytes(_GO)

    def _collect(self, name: str, world_size: int, timeout: float) -> dict[int, _Report]:
        """Wait for all ranks; poison the pool if one dies or does not answer in time."""
        deadline = time.monotonic() + timeout
        waiting = {self._pipes[rank]: rank for rank in range(world_size)}
        reports: dict[int, _Report] = {}
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                ranks = sorted(waiting.values())
                self._lose(name, f"no answer from ranks {ranks} within {timeout:g} s", reports)
            for pipe, rank in list(waiting.items()):
                if pipe not in ready:
                    continue
                del waiting[pipe]
                try:
                    reports[rank] = pickle.loads(pipe.recv_bytes())  # noqa: S301  our own process
                except (EOFError, OSError):
                    self._processes[rank].join(_DEATH_SECONDS)  # its exit code comes a bit later
                    code = self._processes[rank].exitcode
                    self._lose(name, f"rank {rank} died with exit code {code}", reports)
        return reports

    def _lose(self, name: str, what: str, reports: dict[int, _Report]) -> None:
        self._poison = f"{name}: {what}"
        self.close()
        heard = [f"rank {r} before that:\n{v.failure}" for r, v in reports.items() if v.failure]
        raise RankFailure("\n".join([self._poison, *heard]))


def run_ranks(
    function: Callable[..., Any], world_size: int, *arguments: Any, **options: Any
) -> Any:
    """Do what `RankPool.run` does with processes of its own; for tests that lose a rank."""
    with RankPool() as pool:
        return pool.run(function, world_size, *arguments, **options)


def _serve(pipe: connection.Connection) -> None:
    """Run jobs until the parent closes the pipe."""
    torch.set_num_threads(1)
    while True:
        try:
            job = pickle.loads(pipe.recv_bytes())  # noqa: S301  sent by the parent
        except EOFError:
            return
        try:
            function = _load(Path(job.file), job.name)
        finally:
            pipe.send_bytes(_GO)
        pipe.recv_bytes()
        pipe.send_bytes(pickle.dumps(_perform(job, function)))


def _perform(job: _Job, function: Callable[..., Any]) -> _Report:
    try:
        ranks = start(
            job.mesh,
            "gloo",
            job.collective_timeout,
            init_method=job.rendezvous,
            shared_memory=job.shared_memory,
        )
        value = function(ranks, *job.arguments)
        # Nobody leaves while another still talks: its failure would be blamed on this rank.
        ranks.world.barrier()
        return _Report(value, None, 0.0)
    except Exception:  # noqa: BLE001  process boundary: the parent raises it
        return _Report(None, traceback.format_exc(), time.monotonic())
    finally:
        stop()


def _load(file: Path, name: str) -> Callable[..., Any]:
    return getattr(_module(file), name)


def _module(file: Path) -> ModuleType:
    """Import `file` once per process under a name of its own."""
    alias = f"ranks_of_{file.stem}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file}: expected a Python file with the function to run")
        module = importlib.util.module_from_spec(spec)
        sys.modules[alias] = module
        spec.loader.exec_module(module)
    return sys.modules[alias]
