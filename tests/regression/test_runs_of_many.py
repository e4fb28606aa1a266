"""Batches and single runs: what ends up on the terminal, in files, and in the exit code.

A failure means that one bad instance spoils others, or that a result a user counts on is not
where it should be.
"""

from __future__ import annotations

import csv
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from complete_verifier import instance, reading
from complete_verifier.attack.save import read_counterexample
from complete_verifier.model.onnx_session import OnnxSession
from tests.regression.conftest import Verify
from tests.regression.user_runs import LITTLE, Run, save_mlp, save_network, vnnlib

Program = Callable[..., Run]
BATCH = ("--complete_verifier", "skip", "--csv_name", "instances.csv", "--result_json", "out.json")

VIOLATED, SAFE = "(<= Y_0 0.5)", "(<= Y_0 -0.5)"  # y = x in [0, 1]
OPEN = "(and (<= Y_0 0.5) (>= Y_0 0.75))"  # impossible, but no bound of one row shows it


@pytest.fixture
def batch(tmp_path: Path) -> Callable[..., None]:
    """`batch(VIOLATED, SAFE, …)` writes one instance per property over net.onnx, y = x."""
    save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)))

    def write(*properties: str, networks: dict[int, str] | None = None) -> None:
        lines = []
        for number, text in enumerate(properties):
            name = f"property_{number}.vnnlib"
            (tmp_path / name).write_text(vnnlib([0, 0], [1, 1], 2, text))
            lines.append(f"{(networks or {}).get(number, 'net.onnx')},{name},20\n")
        (tmp_path / "instances.csv").write_text("".join(lines))

    return write


def results(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- what is written ---------------------------------------------------------------------------


def test_a_batch_says_and_writes_each_verdict(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    batch(VIOLATED, SAFE, OPEN)
    run = program(*BATCH, *LITTLE, "--results_file", "folder/results.csv")
    assert run.code == 0 and run.verdicts == ["sat", "unsat", "unknown"]
    written = results(tmp_path / "folder" / "results.csv")
    assert [(row["index"], row["verdict"]) for row in written] == [
        ("0", "sat"),
        ("1", "unsat"),
        ("2", "unknown"),
    ]
    lines = run.stdout.splitlines()
    for number, verdict in enumerate(run.verdicts, start=1):
        assert sum(line.startswith(f"[{number}/3] net.onnx") for line in lines) == 1
        assert any(line.startswith(f"[{number}/3]") and verdict in line for line in lines)
    assert lines[-1] == "Result: 3 instances: 1 unsat, 1 sat, 1 unknown, 0 timeout, 0 error"
    record = run.records[1]
    assert record["bounds"]["crown"] == pytest.approx([0.5], abs=1e-5)
    assert record["seconds"]["total"] >= record["seconds"]["load"] >= 0
    assert record["parallel"]["world_size"] == 1 and record["counterexample"] is None
    assert len(record["config_hash"]) >= 16 and record["versions"]["torch"]


def test_each_result_is_on_disk_before_the_next_instance_starts(
    program: Program, batch: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(VIOLATED, SAFE, OPEN)
    seen: list[tuple[int, int]] = []
    read = reading.read_vnnlib

    def watch(path: Path) -> Any:
        records = json.loads((tmp_path / "out.json").read_text())
        seen.append((len(records), len(results(tmp_path / "out.txt"))))
        return read(path)

    monkeypatch.setattr(reading, "read_vnnlib", watch)
    program(*BATCH, *LITTLE)
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_every_violated_instance_has_its_own_replayable_counterexample(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    batch(VIOLATED, SAFE, "(>= Y_1 0.9)", "(<= Y_1 0.25)")
    run = program(*BATCH, *LITTLE, "--cex_path", "found/cex.txt")
    assert run.verdicts == ["sat", "unsat", "sat", "sat"]
    files = sorted(path.name for path in (tmp_path / "found").iterdir())
    assert files == ["cex_0.txt", "cex_2.txt", "cex_3.txt"]
    violated = {0: lambda y: y[0] <= 0.5, 2: lambda y: y[1] >= 0.9, 3: lambda y: y[1] <= 0.25}
    for number, holds in violated.items():
        assert run.records[number]["counterexample"].endswith(f"cex_{number}.txt")
        found = read_counterexample(tmp_path / "found" / f"cex_{number}.txt")
        assert ((found.inputs >= 0) & (found.inputs <= 1)).all()
        (replayed,) = OnnxSession(tmp_path / "net.onnx").run(found.inputs[None])
        assert holds(replayed) and (replayed == found.outputs).all()


def test_one_violated_instance_leaves_its_counterexample_in_the_results_file(
    verify: Verify, tmp_path: Path
) -> None:
    onnx = save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)))
    run = verify(onnx, vnnlib([0, 0], [1, 1], 2, VIOLATED), "--results_file", "r.txt")
    assert run.verdict == "sat"
    lines = (tmp_path / "r.txt").read_text().splitlines()
    assert lines[0] == "sat" and lines[1].startswith("((X_0 ")
    assert (tmp_path / "test_cex.txt").exists()
    verify(onnx, vnnlib([0, 0], [1, 1], 2, SAFE), "--results_file", "r.txt")
    assert (tmp_path / "r.txt").read_text() == "unsat\n"


# -- one bad instance --------------------------------------------------------------------------


def test_a_bad_instance_is_an_error_and_the_rest_still_run(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "corrupt.onnx").write_bytes(b"\x08\x07 no network at all")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "net.onnx").read_bytes()[:-20])
    unsupported = [helper.make_node("Acosh", ["x"], ["y"])]
    save_network(tmp_path / "operator.onnx", unsupported, {}, (1, 2))
    save_mlp(tmp_path / "other.onnx", (np.eye(3), np.zeros(3)))
    bad = {1: "corrupt.onnx", 2: "operator.onnx", 3: "other.onnx", 5: "cut.onnx", 6: "empty.onnx"}
    batch(*[VIOLATED] * 9, networks=bad)
    (tmp_path / "property_7.vnnlib").write_text("(declare-const X_0 Real")
    (tmp_path / "property_8.vnnlib").write_bytes(b"\xff\xfe\x00")
    run = program(*BATCH, *LITTLE)
    assert run.code == 1
    assert run.verdicts == ["sat"] + ["error"] * 3 + ["sat"] + ["error"] * 4
    reasons = [record["reason"] for record in run.records]
    for number, wanted in {
        1: "corrupt.onnx",
        2: "Acosh",
        3: "3",
        5: "cut.onnx",
        6: "empty.onnx",
        7: "property_7.vnnlib:1",
        8: "property_8.vnnlib",
    }.items():
        assert wanted in reasons[number] and "\n" not in reasons[number]
        assert "internal error" not in reasons[number]
    assert "Traceback" not in run.stderr
    assert len(results(tmp_path / "out.txt")) == 9


def test_an_internal_error_is_confined_to_its_instance(
    program: Program, batch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(SAFE, SAFE, SAFE)
    original = instance.RegionVerification
    calls: list[int] = []

    def fails_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("planted")
        return original(*arguments)

    monkeypatch.setattr(instance, "RegionVerification", fails_once)
    run = program(*BATCH, *LITTLE)
    assert run.code == 1 and run.verdicts == ["unsat", "error", "unsat"]
    assert "planted" in run.records[1]["reason"] and "ZeroDivisionError" in run.stderr


def test_running_out_of_memory_is_no_verdict(
    program: Program, batch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(SAFE, SAFE)

    def exhausted(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(instance, "RegionVerification", exhausted)
    run = program(*BATCH, *LITTLE)
    assert set(run.verdicts) <= {"error", "unknown"} and len(run.verdicts) == 2


# -- which instances ---------------------------------------------------------------------------


def test_start_and_end_choose_instances_and_keep_their_numbers(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    batch(SAFE, VIOLATED, OPEN, VIOLATED, SAFE)
    run = program(*BATCH, *LITTLE, "--start", "1", "--end", "4")
    assert run.verdicts == ["sat", "unknown", "sat"]
    assert [row["index"] for row in results(tmp_path / "out.txt")] == ["1", "2", "3"]
    assert {path.name for path in tmp_path.glob("test_cex*")} == {
        "test_cex_1.txt",
        "test_cex_3.txt",
    }
    assert program(*BATCH, "--start", "5").code == 2
    assert program(*BATCH, "--start", "3", "--end", "2").code == 2


def test_an_empty_csv_name_turns_a_config_into_one_instance(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    batch(SAFE, SAFE)
    (tmp_path / "run.yaml").write_text(
        "general: {csv_name: instances.csv, complete_verifier: skip, result_json: out.json}\n"
    )
    one = ("--onnx_path", "net.onnx", "--vnnlib_path", "property_1.vnnlib")
    assert program("--config", "run.yaml").verdicts == ["unsat", "unsat"]
    assert program("--config", "run.yaml", "--csv_name", "", *one).verdicts == ["unsat"]


def test_compressed_files_are_read(
    program: Program, batch: Callable[..., None], tmp_path: Path
) -> None:
    batch(SAFE, VIOLATED)
    for path in [*tmp_path.glob("*.onnx"), *tmp_path.glob("*.vnnlib")]:
        with gzip.open(f"{path}.gz", "wb") as file:
            file.write(path.read_bytes())
        path.unlink()
    assert program(*BATCH, *LITTLE).verdicts == ["unsat", "sat"]
    one = ("--onnx_path", "net.onnx", "--vnnlib_path", "property_0.vnnlib.gz")
    assert program(*BATCH, "--csv_name", "", *one).verdicts == ["unsat"]


# -- attack and time ---------------------------------------------------------------------------


def test_the_attack_runs_when_it_is_told_to(program: Program, batch: Callable[..., None]) -> None:
    batch(VIOLATED, SAFE)
    orders = {
        order: program(*BATCH, *LITTLE, "--pgd_order", order)
        for order in ("before", "after", "skip")
    }
    assert orders["before"].verdicts == orders["after"].verdicts == ["sat", "unsat"]
    assert orders["skip"].verdicts == ["unknown", "unsat"]
    before, after, skip = ([r["seconds"] for r in orders[o].records] for o in orders)
    assert before[0]["attack"] > 0
    assert before[1]["attack"] == 0  # plain bounds prove it at a glance
    assert after[0]["initial_bounds"] > 0 and after[1]["attack"] == 0
    assert skip[0]["attack"] == skip[1]["attack"] == 0


def test_a_verdict_found_after_the_bounds_keeps_the_bounds(
    program: Program, batch: Callable[..., None]
) -> None:
    batch(VIOLATED)
    (record,) = program(*BATCH, *LITTLE, "--pgd_order", "after").records
    assert record["verdict"] == "sat" and record["bounds"]["crown"] == pytest.approx([-0.5])


def test_the_same_query_many_times_gives_the_same_answer(
    program: Program, batch: Callable[..., None]
) -> None:
    batch(*[VIOLATED, OPEN] * 5)
    run = program(*BATCH, *LITTLE)
    assert run.verdicts == ["sat", "unknown"] * 5
    assert len({str(record["bounds"]) for record in run.records[1::2]}) == 1


def wide_conv(path: Path) -> Path:
    rng = np.random.default_rng(0)
    node = helper.make_node
    constants: dict[str, Any] = {
        "w0": rng.normal(size=(16, 3, 3, 3)) / 5,
        "w1": rng.normal(size=(32, 16, 3, 3)) / 12,
        "w2": rng.normal(size=(32, 32, 3, 3)) / 17,
        "w3": rng.normal(size=(10, 32768)) / 180,
        "b0": rng.normal(size=16),
        "b1": rng.normal(size=32),
        "b2": rng.normal(size=32),
        "b3": np.zeros(10),
    }
    nodes = []
    current = "x"
    for layer in range(3):
        inputs = [current, f"w{layer}", f"b{layer}"]
        nodes.append(node("Conv", inputs, [f"h{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"h{layer}"], [f"r{layer}"]))
        current = f"r{layer}"
    nodes.append(node("Flatten", [current], ["f"]))
    nodes.append(node("Gemm", ["f", "w3", "b3"], ["y"], transB=1))
    return save_network(path, nodes, constants, (1, 3, 32, 32))


@pytest.mark.parametrize("order", ["before", "skip"])
def test_the_time_limit_holds_on_a_network_that_takes_minutes(
    verify: Verify, tmp_path: Path, order: str
) -> None:
    onnx = wide_conv(tmp_path / "net.onnx")
    text = vnnlib([0.3] * 3072, [0.7] * 3072, 10, "(<= Y_0 -60.0)")
    start = time.monotonic()
    flags = ("--timeout", "4", "--pgd_order", order, "--pgd_steps", 100000)
    run = verify(onnx, text, *flags, "--complete_verifier", "bab")
    assert run.verdict == "timeout" and run.code == 0
    # 5 % + 2 s, and more for a machine that does something else at the same time: without a limit
    # it would be minutes.
    assert time.monotonic() - start <= 4 * 1.05 + 2 + 10
    assert run.records[0]["seconds"]["total"] <= 4 * 1.05 + 2 + 10
