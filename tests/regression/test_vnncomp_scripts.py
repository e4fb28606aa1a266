"""The competition's three scripts, called as it calls them, on the embedded example.

A failure means that a category of the competition is scored as a row of errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from complete_verifier.attack.save import read_counterexample
from complete_verifier.model.onnx_session import OnnxSession
from complete_verifier.specification import read_vnnlib
from tests.regression.user_runs import ROOT

DIGITS = ROOT / "exp_configs" / "digits"
MLP = DIGITS / "onnx" / "mlp.onnx"
SAT, UNSAT = "mlp_image_1_eps_0.066.vnnlib", "mlp_image_0_eps_0.026.vnnlib"


def call(script: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ABCROWN_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", str(ROOT / "scripts" / "vnncomp" / f"{script}.sh"), *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_instance(
    folder: Path, onnx: Path, vnnlib: Path, category: str = "none", timeout: object = 60
) -> tuple[list[str], str]:
    """The lines of the results file, and standard error."""
    run = call("run_instance", folder, "v1", category, onnx, vnnlib, "results.txt", timeout)
    assert run.returncode == 0, run.stderr
    left_behind = sorted(path.name for path in folder.iterdir())
    assert [name for name in left_behind if name.startswith(("out", "test_cex"))] == []
    return (folder / "results.txt").read_text().splitlines(), run.stderr


def test_a_violated_property_comes_with_its_counterexample(tmp_path: Path) -> None:
    (tmp_path / "results.txt").write_text("unsat\n")  # of another instance
    lines, shown = run_instance(tmp_path, MLP, DIGITS / "vnnlib" / SAT)
    assert lines[0] == "sat" and "run_instance: defaults" in shown
    found = read_counterexample(tmp_path / "results.txt")
    (outputs,) = OnnxSession(MLP).run(found.inputs[None])
    (region,) = read_vnnlib(DIGITS / "vnnlib" / SAT).regions
    assert (outputs == found.outputs).all() and region.margins(outputs[None]).min() <= 0
    assert (region.lower <= found.inputs).all() and (found.inputs <= region.upper).all()


def test_a_category_has_its_own_config(tmp_path: Path) -> None:
    lines, shown = run_instance(tmp_path, MLP, DIGITS / "vnnlib" / UNSAT, "mnist_fc")
    assert lines == ["unsat"]
    assert f"run_instance: {ROOT}/exp_configs/vnncomp22/mnist_fc.yaml" in shown


def test_a_file_that_is_absent_is_an_error(tmp_path: Path) -> None:
    lines, _ = run_instance(tmp_path, tmp_path / "absent.onnx", DIGITS / "vnnlib" / UNSAT)
    assert lines == ["error"]


def test_the_time_limit_counts_from_the_start_of_the_script(tmp_path: Path) -> None:
    start = time.monotonic()
    lines, _ = run_instance(tmp_path, MLP, DIGITS / "vnnlib" / UNSAT, timeout="0.5")
    assert lines == ["timeout"]
    assert time.monotonic() - start < 20  # what starting takes on a busy machine


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("install_tool", ()),
        ("install_tool", ("v2",)),
        ("prepare_instance", ("v1", "none", MLP)),
        ("prepare_instance", ("v1", "none", MLP, "absent.vnnlib")),
        ("run_instance", ("v1", "none", MLP, MLP, "results.txt")),
        ("run_instance", ("v1", "none", MLP, MLP, "results.txt", "soon")),
    ],
)
def test_a_wrong_call_is_one_sentence(
    tmp_path: Path, script: str, arguments: tuple[object, ...]
) -> None:
    run = call(script, tmp_path, *arguments)
    assert run.returncode == 1 and run.stderr.startswith("error: ")
    assert len(run.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_install_and_prepare_need_nothing_more(tmp_path: Path) -> None:
    run = call("install_tool", tmp_path, "v1")
    assert run.returncode == 0 and run.stdout == f"installed: {sys.executable}\n"
    ready = call("prepare_instance", tmp_path, "v1", "none", MLP, DIGITS / "vnnlib" / UNSAT)
    assert (ready.returncode, ready.stdout) == (0, "") and not list(tmp_path.iterdir())
