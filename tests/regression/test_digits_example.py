"""The embedded example: its files are what scripts/digits_example.py says they are.

A failure means that a committed network or property was changed by hand, or that the writers of
ONNX and VNN-LIB no longer say what they were asked to.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from complete_verifier.specification.vnnlib import parse_vnnlib, read_vnnlib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "exp_configs" / "digits"
NETWORKS = ("mlp", "conv", "resnet")


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import digits_networks

    return digits_networks


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import digits_example

    return digits_example


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import digits_properties

    return digits_properties


def rows(name: str) -> list[list[str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.reader(file))


def outputs(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the network's outputs, [N, 10], for images [N, 64]; its batch is fixed at 1."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    runs = [session.run(None, {"input": image.reshape(shape)})[0][0] for image in images]
    return np.stack(runs)


def test_each_network_has_an_instance_of_each_kind(properties: ModuleType) -> None:
    kinds = {(onnx, kind) for onnx, _, _, _, kind in rows("expected.csv")}
    wanted = {(f"onnx/{name}.onnx", kind) for name in NETWORKS for kind in properties.KINDS}
    assert kinds == wanted
    assert [row[:3] for row in rows("expected.csv")] == rows("instances.csv")


def test_no_file_is_missing_or_left_over() -> None:
    listed = {path for row in rows("instances.csv") for path in row[:2]}
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")}
    assert found == listed


@pytest.mark.parametrize("name", NETWORKS)
def test_the_committed_network_classifies_the_test_set(name: str, networks: ModuleType) -> None:
    data = networks.load_data(0)
    scores = outputs(FOLDER / "onnx" / f"{name}.onnx", data.test_images.numpy())
    assert (scores.argmax(1) == data.test_labels.numpy()).mean() >= 0.97


def test_each_property_is_the_ball_around_its_image_inside_the_unit_box(
    networks: ModuleType,
) -> None:
    data = networks.load_data(0)
    for _, name, _ in rows("instances.csv"):
        _, _, image_index, _, epsilon = Path(name).stem.split("_")
        (region,) = read_vnnlib(FOLDER / name).regions
        image = data.test_images[int(image_index)].double().numpy()
        radius = float(epsilon)
        np.testing.assert_allclose(region.lower, np.clip(image - radius, 0, 1), atol=1e-12)
        np.testing.assert_allclose(region.upper, np.clip(image + radius, 0, 1), atol=1e-12)


def test_the_unsafe_set_is_any_other_class_scored_as_high(properties: ModuleType) -> None:
    candidate = properties.Candidate("mlp", image=5, label=1, epsilon=0.25)
    text = properties.vnnlib_text(candidate, torch.tensor([0.0, 0.5, 1.0]), num_classes=3)
    (region,) = parse_vnnlib(text, "test").regions
    assert region.lower.tolist() == [0, 0.25, 0.75] and region.upper.tolist() == [0.25, 0.75, 1]

    def unsafe(scores: list[float]) -> bool:
        return any(
            bool((clause.coefficients @ np.array(scores) <= clause.rhs).all())
            for clause in region.clauses
        )

    assert not unsafe([0.9, 1.0, 0.9])
    assert unsafe([1.0, 1.0, 0.0]) and unsafe([0.0, 1.0, 1.5])


@pytest.mark.parametrize("name", NETWORKS)
def test_the_exported_network_computes_what_pytorch_does(
    name: str, networks: ModuleType, tmp_path: Path
) -> None:
    from onnx_graph import save_onnx

    torch.manual_seed(1)
    architecture = getattr(networks, name)()
    images = torch.rand(5, 64)
    inputs = images.reshape(-1, *architecture.input_shape)
    architecture.layers(inputs)  # in training mode, so that BatchNormalization has statistics
    path = tmp_path / f"{name}.onnx"
    save_onnx(architecture.layers, architecture.input_shape, 10, path)
    with torch.no_grad():
        expected = architecture.layers(inputs).numpy()
    # float32 sums of at most 256 terms of order 1, in another order
    np.testing.assert_allclose(outputs(path, images.numpy()), expected, atol=1e-5)


def test_a_layer_without_a_rule_is_refused(networks: ModuleType, tmp_path: Path) -> None:
    from onnx_graph import save_onnx

    with pytest.raises(TypeError, match="no rule to write a GELU as ONNX"):
        save_onnx(torch.nn.Sequential(torch.nn.GELU()), (3,), 3, tmp_path / "x.onnx")


def test_selection_takes_each_kind_from_another_image(properties: ModuleType) -> None:
    offered = [
        properties.Candidate("mlp", image, 0, epsilon)
        for image in range(4)
        for epsilon in (0.1, 0.2, 0.3, 0.4)
    ]
    kinds = {c: properties.KINDS[round(c.epsilon * 10) - 1] for c in offered}
    chosen = properties.select(offered, kinds)
    assert [kind for _, kind in chosen] == list(properties.KINDS)
    assert [candidate.image for candidate, _ in chosen] == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="mlp: no unused image with a property of kind violated"):
        properties.select(offered[:12], kinds)


@pytest.mark.parametrize(
    ("crown", "alpha", "verdict", "kind"),
    [
        ([0.5, 0.3], [], "unsat", "crown"),
        ([0.5, 0.05], [], "unsat", None),
        ([0.5, -0.3], [0.01], "unsat", "alpha-crown"),
        ([0.5, -0.3], [-0.2], "unknown", "open"),
        ([0.5, -0.3], [-0.02], "unknown", None),
        ([0.5, -0.3], [], "sat", "violated"),
        ([0.5, -0.3], [-0.2], "timeout", None),
    ],
)
def test_close_calls_are_of_no_kind(
    crown: list[float], alpha: list[float], verdict: str, kind: str | None, maker: ModuleType
) -> None:
    proven = "unsat" if min(crown) > 0 else "unknown"
    by_crown = {"verdict": proven, "bounds": {"crown": crown}}
    by_alpha = {"verdict": verdict, "bounds": {"crown": crown, "alpha_crown": alpha}}
    assert maker.kind(by_crown, by_alpha) == kind


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the records of the example's own config, run from another folder."""
    folder = tmp_path_factory.mktemp("digits")
    command = [sys.executable, str(ROOT / "abcrown.py"), "--config", str(FOLDER / "digits.yaml")]
    command += ["--result_json", "out.json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads((folder / "out.json").read_text())
    return found


def test_the_verifier_answers_as_expected(records: list[dict[str, Any]]) -> None:
    answers = [record["verdict"] for record in records]
    assert answers == [verdict for _, _, _, verdict, _ in rows("expected.csv")]


def test_alpha_is_needed_exactly_where_the_example_says_so(records: list[dict[str, Any]]) -> None:
    for record, (_, name, _, _, kind) in zip(records, rows("expected.csv"), strict=True):
        crown, alpha = record["bounds"]["crown"], record["bounds"]["alpha_crown"]
        if kind == "crown":
            assert min(crown) > 0, name
        elif kind == "alpha-crown":
            assert min(crown) < 0 < min(alpha), name
        elif kind == "open":
            assert min(crown) < min(alpha) < 0, name


def test_each_counterexample_is_saved_to_a_file_of_its_own(records: list[dict[str, Any]]) -> None:
    files = [record["counterexample"] for record in records if record["verdict"] == "sat"]
    assert len(set(files)) == len(NETWORKS) and None not in files
