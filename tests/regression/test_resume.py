"""Batches that are continued: `--resume`, and `scripts/run_batch.py` when the process is killed.

A failure means that hours of work are done again, that an answer of another question is taken for
this one's, or that one instance that runs out of memory costs the rest of a category.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from complete_verifier import reading
from complete_verifier.results.in_progress import GivenUp, write_given_up
from tests.regression.user_runs import LITTLE, ROOT, Run, save_mlp, vnnlib

Program = Callable[..., Run]
VIOLATED, SAFE = "(<= Y_0 0.5)", "(<= Y_0 -0.5)"  # y = x in [0, 1]
BATCH = (*("--complete_verifier", "skip", "--csv_name", "instances.csv"), *LITTLE)
BOTH = (*BATCH, "--result_json", "r.json", "--results_file", "r.csv")
ONLY_JSON = (*BATCH, "--result_json", "r.json", "--results_file", "")
ONLY_CSV = (*BATCH, "--results_file", "r.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four instances: sat, unsat, error (the file is no network), sat."""
    save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)))
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    lines = []
    for number, text in enumerate((VIOLATED, SAFE, SAFE, VIOLATED)):
        (tmp_path / f"p{number}.vnnlib").write_text(vnnlib([0, 0], [1, 1], 2, text))
        lines.append(f"{'broken' if number == 2 else 'net'}.onnx,p{number}.vnnlib,20\n")
    (tmp_path / "instances.csv").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def worked_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The properties read, in order."""
    seen: list[str] = []
    read = reading.read_vnnlib

    def watch(path: Path) -> Any:
        seen.append(Path(path).stem)
        return read(path)

    monkeypatch.setattr(reading, "read_vnnlib", watch)
    return seen


def rows(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="") as file:
        return [(row["index"], row["verdict"]) for row in csv.DictReader(file)]


def records(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())
    assert isinstance(found, list)
    return found


def keep_first(path: Path, count: int) -> None:
    """What a run leaves that was killed after so many instances."""
    if path.suffix == ".json":
        path.write_text(json.dumps(records(path)[:count]))
    else:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: count + 1]))


@pytest.mark.parametrize("flags", [BOTH, ONLY_JSON, ONLY_CSV], ids=["both", "json", "csv"])
def test_a_batch_goes_on_where_it_stopped(
    program: Program, folder: Path, worked_on: list[str], flags: tuple[str, ...]
) -> None:
    program(*flags)
    files = [path for path in (folder / "r.json", folder / "r.csv") if path.exists()]
    assert len(files) == (2 if flags is BOTH else 1)
    for path in files:
        keep_first(path, 3)
    before = [path.read_text().rstrip("]\n").split("\n")[:2] for path in files]
    worked_on.clear()
    run = program(*flags, "--resume")
    assert worked_on == ["p3"], "the error is tried again too, but its network cannot be read"
    assert run.code == 1
    assert "resume: 2 of 4 are answered already and skipped" in run.stdout.splitlines()
    final = "Result: 4 instances: 1 unsat, 2 sat, 0 unknown, 0 timeout, 1 error"
    assert run.stdout.splitlines()[-1] == final
    assert not any(line.startswith(("[1/4]", "[2/4]")) for line in run.stdout.splitlines())
    for path, lines in zip(files, before, strict=True):
        if path.suffix == ".json":
            assert [r["verdict"] for r in records(path)] == ["sat", "unsat", "error", "sat"]
        else:
            assert rows(path) == [("0", "sat"), ("1", "unsat"), ("2", "error"), ("3", "sat")]
            assert path.read_text().split("\n")[:2] == lines
    assert not list(folder.glob("*.current"))


def test_records_are_kept_to_the_last_bit(program: Program, folder: Path) -> None:
    program(*BOTH)
    before = records(folder / "r.json")
    program(*BOTH, "--resume")
    after = records(folder / "r.json")
    assert [r for r in after if r["verdict"] != "error"] == before[:2] + before[3:]


def test_a_resumed_batch_with_nothing_left_says_so(
    program: Program, folder: Path, worked_on: list[str]
) -> None:
    lines = (folder / "instances.csv").read_text().splitlines(keepends=True)
    (folder / "instances.csv").write_text("".join(lines[:2]))
    program(*BOTH)
    texts = [(folder / name).read_text() for name in ("r.json", "r.csv")]
    worked_on.clear()
    run = program(*BOTH, "--resume")
    assert run.code == 0 and worked_on == []
    assert run.stdout.splitlines()[-1].startswith("Result: 2 instances: 1 unsat, 1 sat")
    assert [(folder / name).read_text() for name in ("r.json", "r.csv")] == texts


def test_rows_lost_by_a_crash_between_the_two_files_come_back(
    program: Program, folder: Path, worked_on: list[str]
) -> None:
    program(*BOTH)
    keep_first(folder / "r.csv", 0)
    worked_on.clear()
    program(*BOTH, "--resume")
    assert worked_on == []
    assert sorted(rows(folder / "r.csv")) == [
        ("0", "sat"),
        ("1", "unsat"),
        ("2", "error"),
        ("3", "sat"),
    ]


def test_answers_under_another_config_are_not_taken_over(
    program: Program, folder: Path, worked_on: list[str]
) -> None:
    program(*BOTH)
    worked_on.clear()
    run = program(*BOTH, "--seed", "7", "--resume")
    assert worked_on == ["p0", "p1", "p3"] and "resume: 0 of 4" in run.stdout
    assert "4 records are not kept: they were made with another configuration" in run.stderr
    assert len(records(folder / "r.json")) == len(rows(folder / "r.csv")) == 4


@pytest.mark.parametrize("flags", [BOTH, ONLY_CSV], ids=["both", "csv"])
def test_answers_of_other_instances_are_not_taken_over(
    program: Program, folder: Path, worked_on: list[str], flags: tuple[str, ...]
) -> None:
    program(*flags)
    lines = (folder / "instances.csv").read_text().splitlines(keepends=True)
    (folder / "other.vnnlib").write_text((folder / "p3.vnnlib").read_text())
    (folder / "instances.csv").write_text("net.onnx,other.vnnlib,20\n" + lines[1])
    worked_on.clear()
    run = program(*flags, "--resume")
    assert worked_on == ["other"] and run.code == 0
    assert "are not kept: they are of instances that are not asked for" in run.stderr
    assert sorted(rows(folder / "r.csv")) == [("0", "sat"), ("1", "unsat")]


def test_the_first_run_may_say_resume_too(program: Program, folder: Path) -> None:
    run = program(*BOTH, "--resume")
    assert run.code == 1 and len(records(folder / "r.json")) == 4
    assert "r.json: not found, so every instance is run" in run.stderr


@pytest.mark.parametrize(("name", "text"), [("r.json", "{}"), ("r.csv", "sat\n")])
def test_a_file_that_holds_something_else_is_left_alone(
    program: Program, folder: Path, name: str, text: str
) -> None:
    (folder / name).write_text(text)
    run = program(*(ONLY_JSON if name == "r.json" else ONLY_CSV), "--resume")
    assert run.code == 2 and f"abcrown: error: {name}:" in run.stderr
    assert "Traceback" not in run.stderr
    assert (folder / name).read_text() == text


def test_resume_needs_a_batch_with_a_file(program: Program, folder: Path) -> None:
    one = ("--onnx_path", "net.onnx", "--vnnlib_path", "p0.vnnlib")
    assert "--resume: expected a batch" in program(*one, "--resume").stderr
    assert "--resume: expected a file" in program(*BATCH, "--results_file=", "--resume").stderr


# -- the instance in progress ------------------------------------------------------------------


def test_the_instance_in_progress_is_named_until_it_ends(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = reading.read_vnnlib

    def watch(path: Path) -> Any:
        seen.append(json.loads((folder / "r.json.current").read_text()))
        return read(path)

    monkeypatch.setattr(reading, "read_vnnlib", watch)
    program(*BOTH)
    assert [(item["index"], item["onnx"], item["vnnlib"]) for item in seen] == [
        (number, "net.onnx", f"p{number}.vnnlib") for number in (0, 1, 3)
    ]
    assert not list(folder.glob("*.current"))


def test_an_interrupt_accuses_no_instance(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "read_vnnlib", interrupted)
    assert program(*BOTH).code == 1 and not list(folder.glob("*.current"))


def test_what_was_given_up_is_an_error_and_not_tried(
    program: Program, folder: Path, worked_on: list[str]
) -> None:
    write_given_up(folder / "lost.json", [GivenUp(1, "killed by a test", 7.5)])
    run = program(*BOTH, "--given_up", "lost.json")
    assert worked_on == ["p0", "p3"] and run.code == 1
    record = records(folder / "r.json")[1]
    assert (record["verdict"], record["reason"]) == ("error", "killed by a test")
    assert record["seconds"]["total"] == 7.5 and record["vnnlib"] == "p1.vnnlib"
    assert rows(folder / "r.csv")[1] == ("1", "error")


# -- scripts/run_batch.py ----------------------------------------------------------------------

# The verifier itself, except that reading one property kills the process.
DEADLY = """
import os, signal, sys
sys.path.insert(0, {root!r})
from complete_verifier import abcrown, reading
read = reading.read_vnnlib
def deadly(path):
    if path.stem == "p1":
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path)
reading.read_vnnlib = deadly
raise SystemExit(abcrown.main())
"""

# Stands in for the verifier where only its end matters: dies on instances 0 and 2 of 3.
FAKE = """
import json, os, pathlib, signal, sys
words = sys.argv[1:]
lost = {item["index"] for item in json.loads(pathlib.Path(words[-1]).read_text())}
pathlib.Path("calls").open("a").write(" ".join(words[:-1]) + "\\n")
for index in {deadly!r}:
    if index not in lost:
        text = json.dumps(dict(index=index, onnx="n", vnnlib="p", started=0.0))
        pathlib.Path("r.json.current").write_text(text)
        {die}
raise SystemExit({code})
"""


def supervise(folder: Path, program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`scripts/run_batch.py` with another program for the verifier."""
    (folder / "program.py").write_text(program)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        "import run_batch; run_batch._command = lambda _: [sys.executable, 'program.py']\n"
        f"raise SystemExit(run_batch.main({['--', *flags]!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_instance_that_kills_the_process_is_an_error_and_the_rest_run(folder: Path) -> None:
    program = DEADLY.replace("{root!r}", repr(str(ROOT)))
    run = supervise(folder, program, *BOTH, "--device", "cpu")
    assert run.returncode == 1, run.stderr
    assert rows(folder / "r.csv") == [("0", "sat"), ("1", "error"), ("2", "error"), ("3", "sat")]
    found = records(folder / "r.json")
    assert [record["verdict"] for record in found] == ["sat", "error", "error", "sat"]
    assert "was killed (SIGKILL)" in found[1]["reason"]
    assert "internal error" not in run.stderr and not list(folder.glob("*.current"))
    assert "resume: 1 of 4 are answered already" in run.stdout
    final = "Result: 4 instances: 0 unsat, 2 sat, 0 unknown, 0 timeout, 2 error"
    assert run.stdout.splitlines()[-1] == final


@pytest.mark.parametrize(
    ("die", "expected"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed (SIGSEGV)"),
        ("raise SystemExit(1)", "ended with exit code 1"),
    ],
)
def test_every_death_costs_one_instance(folder: Path, die: str, expected: str) -> None:
    program = FAKE.replace("{deadly!r}", "(0, 2)").replace("{die}", die).replace("{code}", "1")
    run = supervise(folder, program, *BOTH)
    calls = (folder / "calls").read_text().splitlines()
    assert run.returncode == 1 and len(calls) == 3
    assert [" --resume" in call for call in calls] == [False, True, True]
    assert run.stderr.count(expected) == 2 and "instance 2: " in run.stderr


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("1", 1), ("2", 2), ("9", 1)])
def test_an_end_between_instances_is_the_end(folder: Path, code: str, expected: int) -> None:
    program = FAKE.replace("{deadly!r}", "()").replace("{die}", "pass").replace("{code}", code)
    (folder / "r.json.current").write_text(json.dumps({"index": 0}))  # of an older run
    run = supervise(folder, program, *BOTH)
    assert run.returncode == expected and len((folder / "calls").read_text().splitlines()) == 1


def test_the_supervisor_asks_for_a_batch(folder: Path) -> None:
    run = supervise(folder, "", "--results_file", "r.csv")
    assert run.returncode == 2 and "expected a batch" in run.stderr
