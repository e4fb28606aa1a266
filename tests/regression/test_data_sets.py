"""A data set and a PyTorch model from the command line to the results file.

A failure means that configs without VNN-LIB files no longer run.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from complete_verifier.abcrown import main


def test_a_config_with_a_model_and_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    torch.save(layers.state_dict(), "net.pth")
    Path("mine.py").write_text(
        "from torch import nn\n"
        "def net(width=64):\n    return nn.Sequential(nn.Flatten(), nn.Linear(width, 10))\n"
    )
    config = {
        "general": {"device": "cpu", "results_file": "results.csv", "complete_verifier": "skip"},
        "model": {"name": 'Customized("mine", "net")', "path": "net.pth"},
        "data": {"dataset": "digits", "start": 0, "end": 2},
        "specification": {"epsilon": 1e-4, "robustness_type": "clean-runnerup"},
    }
    Path("config.yaml").write_text(yaml.safe_dump(config))
    flags = ["--config", "config.yaml", "--extensions", "mine.py"]
    assert main(flags) == 0
    rows = list(csv.DictReader(Path("results.csv").open()))
    assert [row["verdict"] for row in rows] == ["unsat", "unsat"]
    assert rows[1]["vnnlib"] == "digits[1] linf eps 0.0001 clean-runnerup"
    assert rows[0]["onnx"] == 'Customized("mine", "net") net.pth'
    # Far enough to leave the class of a network that was never trained.
    assert main([*flags, "--epsilon", "1", "--norm", "2", "--select_instance", "1"]) == 0
    (row,) = csv.DictReader(Path("results.csv").open())
    assert (row["index"], row["verdict"]) == ("1", "sat")
    assert (tmp_path / "test_cex_1.txt").is_file()
    # An offset below the margin of every point makes the same question safe.
    assert main([*flags, "--epsilon", "1", "--rhs_offset", "-100"]) == 0
    assert {row["verdict"] for row in csv.DictReader(Path("results.csv").open())} == {"unsat"}
    capsys.readouterr()
