"""The attack on real networks: every `sat` of mnist_fc that three tools found, by default settings.

A failure means that users see `unknown` where the field has counterexamples.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from auto_LiRPA_patches.registry import patched
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.attack.counterexample import confirm
from complete_verifier.attack.search import SpecificationAttack, attack_specification
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.model.network import Network, load_network
from complete_verifier.model.replay import run_onnx
from complete_verifier.specification import read_vnnlib

ROOT = Path(__file__).resolve().parents[3].parent / "shared" / "benchmarks"

pytestmark = [
    pytest.mark.benchmarks,
    pytest.mark.skipif(not ROOT.is_dir(), reason=f"benchmarks absent: {ROOT}"),
]


def _violated(category: str) -> dict[str, list[str]]:
    """Network -> properties that at least three tools found violated."""
    expected = ROOT / category / "expected.csv"
    found: dict[str, list[str]] = {}
    if not expected.is_file():
        return found
    with expected.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["verdict"] == "sat" and int(row["tools_sat"]) >= 3:
                found.setdefault(row["onnx"], []).append(row["vnnlib"])
    return found


def _load(path: Path) -> Network:
    with patched():
        return load_network(path, OneRankWeights(), check=False)


def _attack(network: Network, onnx_path: Path, vnnlib: Path) -> SpecificationAttack:
    return attack_specification(
        network.forward,
        read_vnnlib(vnnlib),
        AttackSettings(),
        seed=100,
        confirm=lambda region, x: confirm(onnx_path, region, x, run_onnx),
    )


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("onnx", sorted(_violated("vnncomp2022/mnist_fc")))
def test_every_known_violation_of_mnist_fc_is_found(onnx) -> None:
    folder = ROOT / "vnncomp2022" / "mnist_fc"
    network = _load(folder / onnx)
    missed = [
        vnnlib
        for vnnlib in _violated("vnncomp2022/mnist_fc")[onnx]
        if _attack(network, folder / onnx, folder / vnnlib).counterexample is None
    ]
    assert not missed


@pytest.mark.parametrize(("category", "at_least"), [("vnncomp2022/acasxu", 13)])
def test_most_known_violations_of_small_control_networks_are_found(category, at_least) -> None:
    """16 are known; two or three satisfy their conjunction in a sliver that chance must meet."""
    found = 0
    for onnx, properties in _violated(category).items():
        path = ROOT / category / onnx
        network = _load(path)
        for vnnlib in properties:
            result = _attack(network, path, ROOT / category / vnnlib)
            found += result.counterexample is not None
    assert found >= at_least


def test_a_property_of_mnist_fc_that_holds_has_no_counterexample() -> None:
    folder = ROOT / "vnncomp2022" / "mnist_fc"
    onnx = folder / "onnx" / "mnist-net_256x2.onnx"
    result = _attack(_load(onnx), onnx, folder / "vnnlib" / "prop_0_0.03.vnnlib")
    assert result.counterexample is None
    assert 0.340 < result.best_margin < 1.0  # CROWN's lower bound of the same margin is 0.3408
