"""`--measure_memory`: the same verdicts, and bytes that start at the parameters held.

Conv networks once failed to load under the meter: torch traces another graph while it watches.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from complete_verifier.abcrown import main
from tests.regression.user_runs import ROOT

DIGITS = ROOT / "exp_configs" / "digits"
INSTANCES = {
    "mlp": "mlp_image_0_eps_0.026.vnnlib",
    "conv": "conv_image_0_eps_0.038.vnnlib",
    "resnet": "resnet_image_0_eps_0.024.vnnlib",
}


@pytest.mark.parametrize("name", list(INSTANCES))
def test_measuring_changes_no_verdict_and_starts_at_the_parameters(
    name: str, tmp_path: Path
) -> None:
    records = []
    for extra in ([], ["--measure_memory"]):
        out = tmp_path / f"{len(extra)}.json"
        onnx, vnnlib = DIGITS / "onnx" / f"{name}.onnx", DIGITS / "vnnlib" / INSTANCES[name]
        flags = ["--onnx_path", str(onnx), "--vnnlib_path", str(vnnlib), "--device", "cpu"]
        flags += ["--result_json", str(out), "--results_file", str(tmp_path / "out.txt")]
        assert main([*flags, "--complete_verifier", "skip", *extra]) == 0
        records += json.loads(out.read_text())
    plain, measured = records
    assert plain["verdict"] == measured["verdict"] == "unsat"
    assert plain["bounds"] == measured["bounds"]
    memory = measured["memory"]
    (baseline,), (peak,) = memory["baseline_bytes"], memory["peak_bytes"]
    (before,), (at_peak,) = memory["baseline_by_kind"], memory["peak_by_kind"]
    assert sum(at_peak.values()) == peak
    assert before == {**dict.fromkeys(at_peak, 0), "weights": baseline}
    assert at_peak["a_matrices"] > 0 and at_peak["weights"] >= baseline
    assert [baseline] == measured["parallel"]["parameters"]["bytes_per_rank"]
    assert peak > baseline
    assert plain["memory"]["peak_bytes"] == []
