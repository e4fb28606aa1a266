"""The program under torchrun on this machine: two ranks, real FSDP, real failures.

A failure means that two ranks answer otherwise than one, that both speak, or that a rank's death
leaves the user without a reason or with a process that hangs.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.regression.user_runs import LITTLE, ROOT, Run, read_json, save_mlp, vnnlib

pytestmark = pytest.mark.distributed

DIGITS = ROOT / "exp_configs" / "digits"
BATCH = (
    "--device", "cpu", "--complete_verifier", "skip", "--csv_name", "instances.csv",
    "--result_json", "out.json", *LITTLE,
)  # fmt: skip

# Wraps the program: rank 1 misbehaves when it reads the second property.
WRAPPER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from complete_verifier import reading
from complete_verifier.abcrown import main
from complete_verifier.specification import SpecificationError
read = reading.read_vnnlib

def misbehave(path):
    if os.environ["RANK"] == "1" and path.name == "property_1.vnnlib":
        Path("moment").write_text(str(time.time()))
        {deed}
    return read(path)

reading.read_vnnlib = misbehave
raise SystemExit(main())
"""


@dataclass(frozen=True)
class Launched(Run):
    """A run under torchrun, and when it ended (seconds since the epoch)."""

    ended: float


def torchrun(folder: Path, script: Path, *arguments: str) -> Launched:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    environment = {name: value for name, value in os.environ.items() if "RANK" not in name}
    process = subprocess.run(
        [*command, "2", str(script), *arguments],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    records = read_json(folder / "out.json")
    return Launched(process.returncode, process.stdout, process.stderr, records, time.time())


def failing_batch(folder: Path, deed: str) -> Path:
    """Three provable instances and a script in which rank 1 does `deed` at the second."""
    save_mlp(folder / "net.onnx", (np.eye(2), np.zeros(2)))
    for number in range(3):
        text = vnnlib([0, 0], [1, 1], 2, f"(<= Y_0 -{number}.5)")
        (folder / f"property_{number}.vnnlib").write_text(text)
    lines = [f"net.onnx,property_{number}.vnnlib,60\n" for number in range(3)]
    (folder / "instances.csv").write_text("".join(lines))
    script = folder / "wrapper.py"
    script.write_text(WRAPPER.format(root=str(ROOT), deed=deed))
    return script


def digits_batch(folder: Path, chosen: Sequence[int]) -> None:
    """Some lines of the digits example, with absolute paths."""
    with (DIGITS / "instances.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    lines = [f"{DIGITS / rows[i][0]},{DIGITS / rows[i][1]},60\n" for i in chosen]
    (folder / "instances.csv").write_text("".join(lines))


def test_two_ranks_with_sharded_weights_answer_bit_for_bit_as_one(
    program: Callable[..., Run], tmp_path: Path
) -> None:
    digits_batch(tmp_path, (1, 2, 4, 7, 10))  # each network, each verdict
    alone = program(*BATCH)
    both = torchrun(tmp_path, ROOT / "abcrown.py", *BATCH, "--fsdp")
    assert both.code == 0, both.stderr
    assert both.verdicts == alone.verdicts and {"unsat", "sat", "unknown"} == set(both.verdicts)
    for mine, theirs in zip(both.records, alone.records, strict=True):
        assert mine["bounds"] == theirs["bounds"], mine["vnnlib"]
    for number in range(1, 6):
        assert both.stdout.count(f"[{number}/5]") == 1, "only rank 0 prints"
    assert both.stderr.count("patches applied") == 1
    for record in both.records:
        parallel = record["parallel"]
        assert (parallel["world_size"], parallel["data"], parallel["fsdp"]) == (2, 2, True)
        held = parallel["parameters"]["bytes_per_rank"]
        full = parallel["parameters"]["full_bytes"]
        # Each tensor is cut into halves, an odd one with one element (4 bytes) of padding.
        assert len(held) == 2 and all(full / 2 <= own <= full / 2 + 4 * 64 for own in held)


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        ('raise ZeroDivisionError("planted")', "ZeroDivisionError: planted"),
        ("os.kill(os.getpid(), 9)", "local_rank: 1"),
    ],
)
def test_a_lost_rank_ends_the_run_with_its_number_and_keeps_results(
    tmp_path: Path, deed: str, expected: str
) -> None:
    script = failing_batch(tmp_path, deed)
    run = torchrun(tmp_path, script, *BATCH, "--fsdp")
    assert run.code != 0
    assert expected in run.stderr and "rank 1" in run.stderr.replace("local_rank: 1", "rank 1")
    assert run.verdicts == ["unsat"]
    assert run.ended - float((tmp_path / "moment").read_text()) < 15


def test_a_rank_that_alone_cannot_read_an_instance_ends_the_run(tmp_path: Path) -> None:
    script = failing_batch(tmp_path, "raise SpecificationError('unreadable here')")
    run = torchrun(tmp_path, script, *BATCH, "--fsdp")
    assert run.code != 0
    assert run.verdicts == ["unsat"], "no verdict while ranks work on different instances"
    assert "'unreadable here' on rank 1" in run.stderr


def test_a_world_of_another_size_is_one_clear_error(tmp_path: Path) -> None:
    run = torchrun(tmp_path, ROOT / "abcrown.py", "--world_size", "3")
    assert run.code != 0
    expected = "abcrown: error: parallel.world_size: expected 3 ranks, got 2"
    assert run.stderr.count(expected) == 1
