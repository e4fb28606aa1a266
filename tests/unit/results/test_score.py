"""A score fails where a counterexample refutes an answer, and nowhere else."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.save import write_counterexample
from complete_verifier.results.record_file import RecordFile
from tests.regression.user_runs import random_mlp, vnnlib

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "score.py"
HEADER = "onnx,vnnlib,timeout_s,verdict,tools_sat,tools_unsat\n"
INSIDE, OUTSIDE = np.zeros(4, np.float32), np.full(4, 2.0, np.float32)


@pytest.fixture
def category(tmp_path: Path) -> Path:
    """One network whose property every input of the box violates."""
    (tmp_path / "onnx").mkdir()
    (tmp_path / "vnnlib").mkdir()
    random_mlp(tmp_path / "onnx" / "net_0.onnx", [4, 6, 1])
    text = vnnlib([-1] * 4, [1] * 4, 1, "(<= Y_0 1000.0)")
    (tmp_path / "vnnlib" / "prop_0.vnnlib").write_text(text)
    return tmp_path


def run(record, category: Path, verdict: str, votes: str, *options: str, **fields: object) -> int:
    expected = category / "expected.csv"
    expected.write_text(HEADER + f"onnx/net_0.onnx,vnnlib/prop_0.vnnlib,60,{votes}\n")
    file = RecordFile(category / "out.json")
    file.add(record(0, verdict, **fields))
    main = runpy.run_path(str(SCRIPT))["main"]
    return int(main([str(file.path), str(expected), *options]))


def save(path: Path, inputs: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    write_counterexample(path, Counterexample(inputs, np.zeros(1, np.float32)))


@pytest.mark.parametrize(("inputs", "code"), [(INSIDE, 0), (OUTSIDE, 1)])
def test_a_sat_is_replayed(record, category, capsys, inputs, code) -> None:
    save(category / "cex.txt", inputs)
    assert run(record, category, "sat", "sat,5,0", counterexample="cex.txt") == code
    shown = capsys.readouterr().out
    assert "1 of 1 solved; 0 missed of 1" in shown
    assert ("WRONG: net_0.onnx prop_0.vnnlib: the counterexample" in shown) == bool(code)


@pytest.mark.parametrize(("inputs", "code"), [(INSIDE, 1), (OUTSIDE, 0)])
def test_an_unsat_stands_against_the_counterexamples_of_others(
    record, category, capsys, inputs, code
) -> None:
    folder = category / "other_tool"
    save(folder / "net_0_prop_0.counterexample", inputs)
    flags = ("--counterexamples", str(folder))
    assert run(record, category, "unsat", "sat,5,0", *flags) == code
    shown = capsys.readouterr().out
    assert "conflict: net_0.onnx prop_0.vnnlib: unsat here; 5 tools sat, 0 unsat" in shown
    assert ("WRONG" in shown) == bool(code)


def test_a_majority_alone_refutes_nothing(record, category, capsys) -> None:
    assert run(record, category, "unsat", "sat,7,5") == 0
    assert "1 conflicts with the majority" in capsys.readouterr().out


def test_a_sat_without_its_file_is_named(record, category, capsys) -> None:
    assert run(record, category, "sat", "sat,5,0") == 0
    assert "not replayed: net_0.onnx prop_0.vnnlib: the record names no" in capsys.readouterr().out
    assert run(record, category, "sat", "sat,5,0", counterexample="lost.txt") == 0
    assert "cannot read the counterexample" in capsys.readouterr().out
