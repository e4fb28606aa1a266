"""What users do wrong, and what their machines do to them: one clear sentence, no lost results.

A failure means a traceback where a sentence belongs, a wrong exit code, or results that vanish.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from complete_verifier.abcrown import main
from complete_verifier.results.record_file import RecordFile
from tests.regression.conftest import Verify
from tests.regression.user_runs import ROOT, Run, random_mlp, save_mlp, save_network, vnnlib

Program = Callable[..., Run]
SKIP = ("--complete_verifier", "skip", "--result_json", "out.json")
ONE = ("--onnx_path", "net.onnx", "--vnnlib_path", "p.vnnlib")
BOX = [0, 0], [1, 1]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """net.onnx (y = x), p.vnnlib (violated), instances.csv (it twice) in the working directory."""
    save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)))
    (tmp_path / "p.vnnlib").write_text(vnnlib(*BOX, 2, "(<= Y_0 0.5)"))
    (tmp_path / "instances.csv").write_text("net.onnx,p.vnnlib,20\n" * 2)
    return tmp_path


def one_sentence(run: Run) -> str:
    """The only complaint on stderr, without the prefix."""
    lines = [line for line in run.stderr.splitlines() if line.startswith("abcrown: ")]
    assert len(lines) == 1 and "Traceback" not in run.stderr, run.stderr
    return lines[0].removeprefix("abcrown: error: ")


def start(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "abcrown.py"), "--device", "cpu", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background inherits an ignored SIGINT, and would hand it on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


# -- switches ----------------------------------------------------------------------------------


def test_switches_print_and_exit_0(
    program: Program, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = program(*ONE, "--pgd_steps", "7", "--print_config")
    assert shown.code == 0 and "attack.pgd_steps: 7" in shown.stdout
    assert "--pgd_steps" in shown.stdout
    plan = program(*ONE, "--print_plan")
    assert plan.code == 0 and "2x2" in plan.stdout and "24" in plan.stdout.splitlines()[-1]
    assert not list(files.glob("out*")), "printing writes nothing"
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0 and "--pgd_steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--frobnicate"], "--frobnicate: unknown flag"),
        (["--pgd_step", "3"], "The nearest flag is --pgd_steps"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: config file not found"),
        (["--config", "."], "cannot be read"),
        (["net.onnx"], "unexpected 'net.onnx'"),
        ([], "expected a file to verify"),
        (["--onnx_path", "net.onnx"], "specification.vnnlib_path: expected a file"),
        (
            ["--onnx_path", ".", "--vnnlib_path", "p.vnnlib"],
            "model.onnx_path: file '.' not found",
        ),
        (["--onnx_path", "/tmp", "--vnnlib_path", "p"], "model.onnx_path: file '/tmp' not found"),
        (["--onnx_path", "net.onnx", "--vnnlib_path", "q"], "file 'q' not found"),
        (["--csv_name", "absent.csv"], "general.csv_name: file 'absent.csv' not found"),
        (["--csv_name", "net.onnx"], "net.onnx"),
        (["--csv_name", "p.vnnlib"], "p.vnnlib:1"),
        ([*ONE, "--result_json", "."], "cannot write the file"),
        ([*ONE, "--results_file", "net.onnx/out.txt"], "cannot write the file"),
        ([*ONE, "--rank_logs", "net.onnx"], "--rank_logs: the folder net.onnx cannot be made"),
        ([*ONE, "--pgd_steps", "many"], "attack.pgd_steps"),
        ([*ONE, "--timeout", "0"], "bab.timeout"),
        ([*ONE, "--world_size", "3"], "parallel.world_size: expected 3 ranks, got 1"),
        ([*ONE, "--prepare_only"], "general.prepare_only"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    program: Program, files: Path, arguments: list[str], expected: str
) -> None:
    run = program(*arguments)
    assert run.code == 2
    assert expected in one_sentence(run)


def test_a_listed_file_that_is_absent_stops_the_run_before_it_starts(
    program: Program, files: Path
) -> None:
    (files / "instances.csv").write_text("net.onnx,p.vnnlib,20\nnet.onnx,gone.vnnlib,20\n")
    run = program(*SKIP, "--csv_name", "instances.csv")
    assert run.code == 2 and "instances.csv:2" in one_sentence(run)


# -- places ------------------------------------------------------------------------------------


def test_a_config_works_from_any_folder(
    program: Program, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "base.yaml").write_text("general: {csv_name: instances.csv}\n")
    (files / "run.yaml").write_text(
        "general:\n  complete_verifier: skip\n  result_json: out.json\n"
    )
    elsewhere = files / "deep" / "folder"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    run = program("--config", "../../base.yaml", *SKIP)
    assert run.code == 0 and len(json.loads((elsewhere / "out.json").read_text())) == 2
    assert sorted(path.name for path in elsewhere.iterdir()) == [
        "out.json",
        "out.txt",
        "test_cex_0.txt",
        "test_cex_1.txt",
    ]


@pytest.mark.parametrize("command", [["../abcrown.py"], ["-m", "complete_verifier.abcrown"]])
def test_other_ways_to_start_it(files: Path, command: list[str]) -> None:
    folder = ROOT / "complete_verifier" if command[0].startswith("..") else ROOT
    process = subprocess.run(
        [sys.executable, *command, "--onnx_path", str(files / "net.onnx"), "--print_config"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "model.onnx_path" in process.stdout


def test_names_with_spaces_and_foreign_letters(program: Program, files: Path) -> None:
    os.replace(files / "net.onnx", files / "nätwörk ∂.onnx")
    os.replace(files / "p.vnnlib", files / "prôp 1.vnnlib")
    names = ("--onnx_path", "nätwörk ∂.onnx", "--vnnlib_path", "prôp 1.vnnlib")
    run = program(*SKIP, *names, "--cex_path", "gegen beispiel/ü.txt")
    assert run.verdict == "sat" and run.records[0]["onnx"] == "nätwörk ∂.onnx"
    assert (files / "gegen beispiel" / "ü.txt").exists()


def test_a_terminal_without_greek_letters_does_not_end_the_run(files: Path) -> None:
    (files / "p.vnnlib").write_text(vnnlib(*BOX, 2, "(and (<= Y_0 0.5) (>= Y_0 0.75))"))
    flags = [*SKIP, *ONE, "--pgd_order", "skip", "--init_iteration", "2"]
    process = start(flags, files, PYTHONIOENCODING="ascii")
    shown, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    assert "\\u03b1-CROWN" in shown


# -- files that cannot be written --------------------------------------------------------------


def test_a_counterexample_that_cannot_be_saved_costs_no_verdict(
    program: Program, files: Path
) -> None:
    run = program(*SKIP, "--csv_name", "instances.csv", "--cex_path", "net.onnx/cex.txt")
    assert run.code == 1, "a result is missing"
    assert run.verdicts == ["sat", "sat"]
    assert [record["counterexample"] for record in run.records] == [None, None]
    assert "cannot write the file" in run.stderr and "Traceback" not in run.stderr


def test_a_full_disk_costs_neither_verdicts_nor_later_instances(
    program: Program, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from complete_verifier.results.errors import ResultError

    add, calls = RecordFile.add, []

    def full_once(self: RecordFile, record: object) -> None:
        calls.append(record)
        if len(calls) == 1:
            raise ResultError("out.json: cannot write the file: No space left on device.")
        add(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordFile, "add", full_once)
    run = program(*SKIP, "--csv_name", "instances.csv")
    assert run.code == 1 and "No space left" in run.stderr
    assert run.stdout.count(": sat in") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_named(program: Program, files: Path) -> None:
    files.chmod(0o500)
    try:
        run = program(*ONE)
    finally:
        files.chmod(0o700)
    assert run.code == 2 and "out.txt" in one_sentence(run)


# -- interruptions -----------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_finished(files: Path) -> None:
    random_mlp(files / "slow.onnx", (2, 300, 300, 300, 2))
    hard = vnnlib([-2, -2], [2, 2], 2, "(and (<= Y_0 5.0) (>= Y_0 5.0))")
    (files / "slow.vnnlib").write_text(hard)
    (files / "instances.csv").write_text("net.onnx,p.vnnlib,20\nslow.onnx,slow.vnnlib,200\n")
    flags = [
        *SKIP,
        "--csv_name",
        "instances.csv",
        "--pgd_order",
        "before",
        "--pgd_steps",
        "9999999",
    ]
    process = start(flags, files)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[1/2]"):
            break
    time.sleep(0.3)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and time.monotonic() - asked < 10
    assert "interrupted" in complaints and "Traceback" not in complaints
    (record,) = json.loads((files / "out.json").read_text())
    assert record["verdict"] == "sat"
    assert (files / "test_cex_0.txt").exists()
    assert len((files / "out.txt").read_text().splitlines()) == 2


def test_a_reader_that_has_gone_ends_the_run_quietly(files: Path) -> None:
    process = start([*SKIP, *ONE], files)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    complaints = process.stderr.read()
    process.wait(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in complaints and "BrokenPipe" not in complaints


# -- networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1), (1, 1, 4), (1, 1, 1, 4), ("N", 4)])
def test_odd_input_shapes_are_verified(
    verify: Verify, tmp_path: Path, shape: tuple[int | str, ...]
) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "row_shape"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
    ]
    constants = {"row_shape": [-1, 4], "w": np.eye(4)[:2], "b": [0, 1]}
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, shape)
    text = vnnlib([0] * 4, [1] * 4, 2, "(<= Y_1 0.75)")
    assert verify(onnx, text).verdict == "unsat"
    assert verify(onnx, text.replace("0.75", "1.25")).verdict == "sat"


def test_a_constant_on_the_left_of_a_product(verify: Verify, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["w", "x"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    constants = {"w": [[1.0, 0, 0], [0, 2.0, 0]], "b": [[0.0], [1.0]]}
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, (3, 1))
    text = vnnlib([0] * 3, [1] * 3, 2, "(<= Y_1 0.75)")
    assert verify(onnx, text).verdict in {"unsat", "error"}
    assert verify(onnx, text.replace("0.75", "1.25")).verdict in {"sat", "error"}


def test_a_property_of_another_network_is_refused(verify: Verify, tmp_path: Path) -> None:
    onnx = save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)))
    run = verify(onnx, vnnlib([0] * 3, [1] * 3, 2, "(<= Y_0 0.5)"))
    assert run.code == 1 and "3 inputs" in run.records[0]["reason"]
    run = verify(onnx, vnnlib([0] * 2, [1] * 2, 3, "(<= Y_0 0.5)"))
    assert run.code == 1 and "3 outputs" in run.records[0]["reason"]
