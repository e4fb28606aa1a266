"""`scripts/bench_bab.py` on the embedded example.

A failure means that speed can no longer be measured: a watched function was renamed, or a figure
is not what it is called.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.regression.user_runs import ROOT

DIGITS = ROOT / "exp_configs" / "digits"
INSTANCE = (DIGITS / "onnx" / "mlp.onnx", DIGITS / "vnnlib" / "mlp_image_2_eps_0.075.vnnlib")
LITTLE = ("--batch", "16", "--iterations", "2", "--root_iterations", "5", "--rounds", "2")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    threads = torch.get_num_threads()
    yield importlib.import_module("bench_bab")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("manner", [[], ["--inputs"]], ids=["activations", "inputs"])
def test_the_figures_hold_together(
    bench: Any, manner: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = sys.modules["phase_timer"]
    watched = phases.ACTIVATION_PHASES + phases.INPUT_PHASES
    before = [getattr(item.owner, item.name) for item in watched]
    words = [*map(str, INSTANCE), *LITTLE, *manner, "--json", str(tmp_path / "b.json")]
    assert bench.main(words) == 0
    assert [getattr(item.owner, item.name) for item in watched] == before
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["ending"] == "max_iterations" and found["rounds"] == 2
    assert found["subproblems"] >= 4 and found["subproblems_left"] > 0
    assert found["lower_bound"] < 0
    if not manner:  # boxes are bounded without α, and may start looser than the root's α-CROWN
        assert found["root_lower_bound"] - 1e-3 <= found["lower_bound"]
    rate = found["subproblems"] / found["seconds"]
    assert found["subproblems_per_second"] == pytest.approx(rate)
    spent = found["phase_seconds"]
    assert all(spent[phase] > 0 for phase in ("root bounds", "branching", "bounding", "pool"))
    assert sum(spent.values()) - spent["root bounds"] == pytest.approx(found["seconds"])
    assert spent["rest"] < found["seconds"] / 2
    assert 0 < found["products"]["share_of_operators"] < 1
    assert found["peak_bytes"] > found["pool_bytes"] > 0
    shown = capsys.readouterr().out
    assert f"{found['subproblems']} visited" in shown and "matrix products" in shown


def test_a_property_that_bounds_prove_gives_no_figures(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    proven = DIGITS / "vnnlib" / "mlp_image_0_eps_0.026.vnnlib"
    assert bench.main([str(INSTANCE[0]), str(proven), "--root_iterations", "5"]) == 1
    assert "nothing to branch on" in capsys.readouterr().err


def test_a_moment_belongs_to_the_innermost_phase(bench: Any) -> None:
    ticks = iter(range(100))

    class Work:
        def outer(self) -> None:
            self.inner()

        def inner(self) -> None:
            raise ValueError

    phases = sys.modules["phase_timer"]
    timer = phases.PhaseTimer(clock=lambda: float(next(ticks)))
    watched = [phases.Watched(Work, "outer", "a"), phases.Watched(Work, "inner", "b")]
    with pytest.raises(ValueError), timer.watch(watched):
        Work().outer()
    assert dict(timer.seconds) == {"rest": 2.0, "a": 2.0, "b": 1.0}
