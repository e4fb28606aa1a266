"""The program under torchrun on this machine: two ranks, real FSDP, real failures.

A failure means that two ranks answer otherwise than one, that both speak, or that a rank's death
leaves the user without a reason or with a process that hangs.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.regression.user_runs import LITTLE, ROOT, Run, random_mlp, read_json, save_mlp, vnnlib

pytestmark = pytest.mark.distributed

DIGITS = ROOT / "exp_configs" / "digits"
BATCH = (
    "--device", "cpu", "--complete_verifier", "skip", "--csv_name", "instances.csv",
    "--result_json", "out.json", *LITTLE,
)  # fmt: skip

# Wraps the program: rank 1 misbehaves at the so-many-th call of some function of the library.
WRAPPER = """
import importlib, os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from complete_verifier.abcrown import main

owner = importlib.import_module({module!r})
*holders, name = {function!r}.split(".")
for holder in holders:
    owner = getattr(owner, holder)
original, calls = getattr(owner, name), []

def misbehave(*arguments, **options):
    calls.append(1)
    if os.environ["RANK"] == "1" and len(calls) == {call}:
        Path("moment").write_text(str(time.time()))
        {deed}
    return original(*arguments, **options)

setattr(owner, name, misbehave)
raise SystemExit(main())
"""
KILL = "os.kill(os.getpid(), 9)"


@dataclass(frozen=True)
class Place:
    """Where rank 1 misbehaves: at a call, counted from 1, of a function looked up when called."""

    module: str
    function: str
    call: int


SECOND_PROPERTY = Place("complete_verifier.reading", "read_vnnlib", 2)
SECOND_LOAD = Place("complete_verifier.model.network", "_read_network", 2)
IN_BOUNDS = Place("complete_verifier.bounds.incomplete", "crown_bounds", 3)
IN_BRANCHING = Place("complete_verifier.bab.activation", "Bounding.optimize", 1)


@dataclass(frozen=True)
class Launched(Run):
    """A run under torchrun, and when it ended (seconds since the epoch)."""

    ended: float


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """One launcher with these arguments, in a process group of its own."""
    environment = {name: value for name, value in os.environ.items() if "RANK" not in name}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def torchrun(folder: Path, script: Path, *arguments: str, ranks: int = 2) -> Launched:
    """Run a script on so many ranks to its end."""
    process = start(folder, "--standalone", "--nproc_per_node", str(ranks), str(script), *arguments)
    output, errors = process.communicate(timeout=150)
    records = read_json(folder / "out.json")
    return Launched(process.returncode, output, errors, records, time.time())


def failing_batch(folder: Path, deed: str, place: Place = SECOND_PROPERTY) -> Path:
    """A batch whose first instance is provable, and a script in which rank 1 does `deed`.

    Properties 0 and 1 hold; 2 needs branch and bound, of another network.
    """
    save_mlp(folder / "net.onnx", (np.eye(2), np.zeros(2)))
    random_mlp(folder / "other.onnx", (5, 24, 24, 1), seed=1)
    for number in range(2):
        text = vnnlib([0, 0], [1, 1], 2, f"(<= Y_0 -{number}.5)")
        (folder / f"property_{number}.vnnlib").write_text(text)
    text = vnnlib([-1] * 5, [1] * 5, 1, "(<= Y_0 -1.6)")
    (folder / "property_2.vnnlib").write_text(text)
    lines = [
        f"{net}.onnx,property_{i}.vnnlib,60\n" for i, net in enumerate(("net", "net", "other"))
    ]
    (folder / "instances.csv").write_text("".join(lines))
    script = folder / "wrapper.py"
    script.write_text(WRAPPER.format(root=str(ROOT), deed=deed, **vars(place)))
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
    both = torchrun(tmp_path, ROOT / "abcrown.py", *BATCH, "--fsdp", "--shard_specs", "false")
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
    ("place", "deed", "expected", "finished"),
    [
        (SECOND_LOAD, KILL, "local_rank: 1", 2),
        (IN_BOUNDS, 'raise ZeroDivisionError("planted")', "ZeroDivisionError: planted", 2),
        (IN_BRANCHING, KILL, "local_rank: 1", 2),
    ],
    ids=["loading", "bounding", "branching"],
)
def test_a_lost_rank_ends_the_run_with_its_number_and_keeps_results(
    tmp_path: Path, place: Place, deed: str, expected: str, finished: int
) -> None:
    script = failing_batch(tmp_path, deed, place)
    run = torchrun(tmp_path, script, *BATCH, "--fsdp", "--complete_verifier", "bab")
    assert run.code != 0
    assert expected in run.stderr and "rank 1" in run.stderr.replace("local_rank: 1", "rank 1")
    assert run.verdicts == ["unsat"] * finished
    assert run.ended - float((tmp_path / "moment").read_text()) < 15


def test_two_ranks_that_share_subproblems_do_the_work_of_one(
    program: Callable[..., Run], tmp_path: Path
) -> None:
    failing_batch(tmp_path, "pass")
    flags = ("--complete_verifier", "bab", "--force_synchronous", "--batch_size", "16", "--fsdp")
    flags = (*BATCH, *flags, "false", "--start", "2")
    alone = program(*flags)
    both = torchrun(
        tmp_path, Path("--"), str(ROOT / "abcrown.py"), *flags, "--shard_domains", "true"
    )
    assert both.code == 0, both.stderr
    assert both.verdicts == alone.verdicts
    assert both.records[-1]["bab"] == alone.records[-1]["bab"]
    assert both.records[-1]["bab"]["domains_visited"] > 20
    assert both.records[-1]["parallel"]["shard_domains"]
    assert "rows shared (shard_specs), subproblems shared (shard_domains)" in both.stdout


def test_a_rank_that_alone_cannot_read_an_instance_ends_the_run(tmp_path: Path) -> None:
    deed = "from complete_verifier.specification import SpecificationError as Unreadable; "
    script = failing_batch(tmp_path, f"{deed}raise Unreadable('unreadable here')")
    run = torchrun(tmp_path, script, *BATCH, "--fsdp")
    assert run.code != 0
    assert run.verdicts == ["unsat"], "no verdict while ranks work on different instances"
    assert "'unreadable here' on rank 1" in run.stderr


def test_a_world_of_another_size_is_one_clear_error(tmp_path: Path) -> None:
    run = torchrun(tmp_path, ROOT / "abcrown.py", "--world_size", "3")
    assert run.code != 0
    expected = "abcrown: error: parallel.world_size: expected 3 ranks, got 2"
    assert run.stderr.count(expected) == 1


def test_different_configs_on_ranks_are_one_clear_error(tmp_path: Path) -> None:
    """As where hosts hold config files of different age: rank 1 takes other iterations."""
    deed = "arguments = ([*arguments[0], '--iteration', '3'],)"
    place = Place("complete_verifier.abcrown", "load_config", 1)
    run = torchrun(tmp_path, failing_batch(tmp_path, deed, place), *BATCH, "--fsdp")
    assert run.code != 0
    assert run.records == []
    said = [line for line in run.stderr.splitlines() if "the configuration" in line]
    assert len(said) == 1, "one voice"
    assert "on rank 0" in said[0] and "on rank 1" in said[0]


def test_a_gather_out_of_order_on_one_rank_ends_the_run_with_both_names(tmp_path: Path) -> None:
    place = Place("auto_LiRPA_patches.sharding.sharded_weights", "ShardedWeights.gather", 12)
    other = "arguments = (arguments[0], next(h for h in arguments[0].handles if h != arguments[1]))"
    script = failing_batch(tmp_path, other, place)
    run = torchrun(tmp_path, script, *BATCH, "--fsdp")
    assert run.code != 0
    found = re.findall(r'rank 0 gathers "(\S+)" .*rank 1 gathers "(\S+)"', run.stderr)
    assert len(found) == 1, "one voice"
    assert found[0][0] != found[0][1]
    assert run.ended - float((tmp_path / "moment").read_text()) < 15


def test_a_collective_that_one_rank_never_joins_ends_after_the_timeout(tmp_path: Path) -> None:
    script = failing_batch(tmp_path, "time.sleep(100)", IN_BOUNDS)
    run = torchrun(tmp_path, script, *BATCH, "--fsdp", "--parallel_timeout", "5")
    assert run.code != 0
    assert "rank 0: error: collective" in run.stderr
    assert run.ended - float((tmp_path / "moment").read_text()) < 20


def test_ctrl_c_ends_every_rank_and_keeps_results(tmp_path: Path) -> None:
    script = failing_batch(tmp_path, "time.sleep(100)", IN_BOUNDS)
    process = start(
        tmp_path, "--standalone", "--nproc_per_node", "2", str(script), *BATCH, "--fsdp"
    )
    deadline = time.monotonic() + 100
    while not (tmp_path / "moment").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begun < 15
    assert process.returncode != 0
    assert errors.count("interrupted; the results of finished instances are written") == 1
    assert [record["verdict"] for record in read_json(tmp_path / "out.json")] == ["unsat"] * 2


def test_two_launchers_on_one_machine_answer_as_one(
    program: Callable[..., Run], tmp_path: Path
) -> None:
    digits_batch(tmp_path, (1, 2))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    alone = program(*BATCH)
    flags = ("--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d")
    flags += ("--rdzv_endpoint", endpoint, str(ROOT / "abcrown.py"), *BATCH, "--fsdp")
    flags += ("--shard_specs", "false")  # shared rows change the last bits
    launchers = [start(tmp_path, *flags) for _ in range(2)]
    outputs = [launcher.communicate(timeout=150) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    records = read_json(tmp_path / "out.json")
    assert [record["bounds"] for record in records] == [r["bounds"] for r in alone.records]
    assert records[0]["parallel"]["world_size"] == 2
    assert sorted(out.count("[1/2]") for out, _ in outputs) == [0, 1], "only rank 0 prints"
