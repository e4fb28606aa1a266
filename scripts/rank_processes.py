"""Start ranks on this machine for a script, and bring back what each of them found."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from auto_LiRPA_patches.sharding.collectives import start, stop
from auto_LiRPA_patches.sharding.mesh import Mesh


@dataclass(frozen=True)
class _Job:
    """One call, as sent to one rank."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    folder: str
    timeout: float


class RankProcesses:
    """Processes of one thread each that stay between calls: starting one takes seconds."""

    def __init__(self, timeout: float = 3600) -> None:
        """Start none yet; a collective may take `timeout` seconds."""
        self._timeout = timeout
        self._processes: list[Any] = []
        self._pipes: list[Any] = []

    def run(
        self, work: Callable[..., Any], world_size: int, *arguments: Any, tp: int = 1
    ) -> list[Any]:
        """Call `work(ranks, *arguments)` on so many ranks; returns the results by rank.

        Args:
            work: a function at the top of a module; its result is pickled.
            tp: ranks that share a layer's neurons.

        Raises:
            RuntimeError: a rank raised, with its traceback, or died.
        """
        self._grow(world_size)
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world_size):
                mesh = Mesh(world_size, tp, rank)
                self._pipes[rank].send(_Job(work, arguments, mesh, folder, self._timeout))
            return [self._result(rank) for rank in range(world_size)]

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def _grow(self, world_size: int) -> None:
        while len(self._processes) < world_size:
            process, pipe = spawn(_serve)
            self._processes.append(process)
            self._pipes.append(pipe)

    def _result(self, rank: int) -> Any:
        try:
            failure, result = self._pipes[rank].recv()
        except (EOFError, OSError):
            raise RuntimeError(f"rank {rank} died") from None
        if failure is not None:
            raise RuntimeError(f"rank {rank} failed:\n{failure}")
        return result


def spawn(serve: Callable[[Any], None]) -> tuple[Any, Any]:
    """Start a fresh Python that runs `serve` with one end of a pipe.

    Returns:
        The process, and the other end. It ends with its parent.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # or a process that dies would leave the pipe open
    return process, mine


def _serve(pipe: Any) -> None:
    """Do jobs until the parent has gone."""
    torch.set_num_threads(1)
    while True:
        try:
            job: _Job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_done(job))


def _done(job: _Job) -> tuple[str | None, Any]:
    """The failure, or the result."""
    try:
        where = f"file://{job.folder}/rendezvous"
        ranks = start(job.mesh, "gloo", job.timeout, init_method=where)
        result = job.work(ranks, *job.arguments)
        ranks.world.barrier()
        return None, result
    except Exception:  # noqa: BLE001  process boundary: the parent raises it
        return traceback.format_exc(), None
    finally:
        stop()
