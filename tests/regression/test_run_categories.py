"""`scripts/run_categories.py`: from a folder of benchmarks to a results page."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.regression.user_runs import ROOT, random_mlp, vnnlib

HEADER = "onnx,vnnlib,timeout_s,verdict,tools_sat,tools_unsat\n"


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    """One category, one network, one property that holds and one that nothing satisfies."""
    folder = tmp_path / "benchmarks" / "vnncomp2022" / "acasxu"
    folder.mkdir(parents=True)
    random_mlp(folder / "net.onnx", [3, 5, 2])
    for name, rhs in (("holds", -1000), ("fails", 1000)):
        (folder / f"{name}.vnnlib").write_text(vnnlib([-1] * 3, [1] * 3, 2, f"(<= Y_0 {rhs}.0)"))
    (folder / "instances.csv").write_text("net.onnx,holds.vnnlib,116\nnet.onnx,fails.vnnlib,116\n")
    (folder / "expected.csv").write_text(
        HEADER + "net.onnx,holds.vnnlib,116,unsat,0,5\nnet.onnx,fails.vnnlib,116,sat,5,0\n"
    )
    return tmp_path / "benchmarks"


def test_a_category_is_run_scored_resumed_and_shown(benchmarks, tmp_path, capfd) -> None:
    main = runpy.run_path(str(ROOT / "scripts" / "run_categories.py"))["main"]
    results, page = tmp_path / "results", tmp_path / "RESULTS.md"
    words = [str(benchmarks), str(results), "--limit", "30", "--page", str(page)]
    for _ in range(2):
        assert main(words) == 0, (results / "vnncomp22-acasxu.log").read_text()
        line = capfd.readouterr().out
        assert line.startswith("vnncomp22/acasxu: 2 of 2 solved, 0 of 2 known missed, 0 conflicts")
        text = page.read_text()
        assert "| vnncomp22/acasxu | 30 | 2 | 2 | 2 | 0 | 0 | 0 |" in text
        assert "net.onnx fails.vnnlib" in text
    capped = (results / "vnncomp22-acasxu.csv").read_text()
    assert capped == "net.onnx,holds.vnnlib,30\nnet.onnx,fails.vnnlib,30\n"
    log = (results / "vnncomp22-acasxu.log").read_text()
    assert log.count("counterexample found") == 1, "the second run answers from the first's records"
    (results / "counterexamples" / "vnncomp22-acasxu_1.txt").write_text(
        "((X_0 9)(X_1 9)(X_2 9)\n(Y_0 0))"
    )
    assert main([*words, "--no_run"]) == 1
    assert "1 wrong" in capfd.readouterr().out


def test_nothing_to_run_is_said(tmp_path, capfd) -> None:
    main = runpy.run_path(str(ROOT / "scripts" / "run_categories.py"))["main"]
    assert main([str(tmp_path), str(tmp_path / "results")]) == 2
    assert "expected folders such as vnncomp2022/acasxu" in capfd.readouterr().err
