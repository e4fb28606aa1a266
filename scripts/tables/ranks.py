"""Start processes and ranks, and read what they found out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).resolve().parent / "bound_worker.py"
_TAIL = 15


class RunFailedError(RuntimeError):
    """A run ended with an error; the message holds its last lines."""


CONFIGS = ROOT / "exp_configs" / "fsdp"


@dataclass(frozen=True)
class Setting:
    """How the runs of an experiment are made.

    Attributes:
        scale: small (two CPU cores, 15 minutes) or paper (GPUs).
        folder: where tables and records go.
        benchmarks: the folder of the VNN-COMP files.
        threads: per rank.
        only: if not empty, only rows of these names.
        resume: take what an earlier run with the same arguments left in the folder.
    """

    scale: str
    folder: Path
    benchmarks: Path
    threads: int = 1
    only: tuple[str, ...] = ()
    resume: bool = False

    @property
    def device(self) -> str:
        """Where the ranks compute."""
        return "cuda" if self.scale == "paper" else "cpu"

    def root_of(self, year: int, category: str) -> tuple[str, ...]:
        """Flags that name the folder of a VNN-COMP category."""
        return ("--root_path", str(self.benchmarks / f"vnncomp{year}" / category))

    def wanted(self, name: str) -> bool:
        """Whether the row `name` is to be made."""
        return not self.only or name in self.only


def bound(setting: Setting, network: str, ranks: int, *flags: str) -> dict[str, Any]:
    """Bound a network on `ranks` ranks (`bound_worker`); returns what rank 0 reports."""
    found: dict[str, Any] = _worked(setting, WORKER, network, ranks, flags)
    return found


def split(setting: Setting, network: str, ranks: int, *flags: str) -> list[dict[str, Any]]:
    """Bound a network split by neuron over `ranks` ranks (`tp_worker`); every rank's report."""
    worker = WORKER.with_name("tp_worker.py")
    found: list[dict[str, Any]] = _worked(setting, worker, network, ranks, flags)
    return found


def _worked(setting: Setting, worker: Path, network: str, ranks: int, flags: Sequence[str]) -> Any:
    """What a worker reports; kept in the folder, so that a run that was broken off can go on."""
    words = (worker.stem, network, str(ranks), setting.device, str(setting.threads), *flags)
    kept = _record_path(setting, words)
    if not (setting.resume and kept.exists()):
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            out = Path(scratch) / "out.json"
            arguments = [network, "--out", str(out), "--device", setting.device, *flags]
            _start(setting, ranks, [str(worker), *arguments])
            out.replace(kept)
    return json.loads(kept.read_text())


def verify(setting: Setting, config: str, ranks: int, *flags: str) -> dict[str, Any]:
    """Verify the one instance of a config of exp_configs/fsdp; returns its record."""
    out = _record_path(setting, (config, str(ranks), *flags))
    if setting.resume and (record := _finished(out)) is not None:
        return record
    arguments = [str(ROOT / "abcrown.py"), "--config"]
    arguments += [str(CONFIGS / f"{config}.yaml"), "--measure_memory"]
    arguments += ["--result_json", str(out), "--results_file", str(out.with_suffix(".txt"))]
    arguments += ["--device", setting.device, *flags]
    _start(setting, ranks, arguments)
    found = _finished(out)
    if found is None:
        raise RunFailedError(f"{config} on {ranks} rank(s) ended in an error; see {out}")
    return found


def _record_path(setting: Setting, words: Sequence[str]) -> Path:
    """Where the report of a run with these arguments lies; the folder is made."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", "_".join(Path(word).name for word in words))
    path = (setting.folder / "records" / f"{name}.json").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _finished(out: Path) -> dict[str, Any] | None:
    """The one record of a file, if it is there and no error."""
    records: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    return records[0] if len(records) == 1 and records[0]["verdict"] != "error" else None


def _start(setting: Setting, ranks: int, command: Sequence[str]) -> None:
    """Run `command` as one plain process or under torchrun.

    Raises:
        RunFailedError: it ended with another exit code than 0.
    """
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc_per_node", str(ranks), "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    environment["MKL_NUM_THREADS"] = str(setting.threads)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    print(f"  {ranks} rank(s): {' '.join(Path(part).name for part in command)}", flush=True)
    start = time.monotonic()
    result = subprocess.run(
        [*launcher, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"    {time.monotonic() - start:.0f} s", flush=True)
    if result.returncode:
        tail = "\n".join((result.stderr + result.stdout).strip().splitlines()[-_TAIL:])
        raise RunFailedError(f"exit code {result.returncode} of {' '.join(command)}:\n{tail}")
