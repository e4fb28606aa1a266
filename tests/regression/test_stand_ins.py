"""Stand-ins of large networks: made when a config first names them, the same on every machine.

A failure means that a config of exp_configs/fsdp no longer runs from a fresh checkout, or that its
network or property is not what the experiments are about.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import stand_ins
import torch

from complete_verifier.abcrown import main
from complete_verifier.config import load_config
from complete_verifier.specification import read_vnnlib
from tests.regression.user_runs import ROOT

FSDP = ROOT / "exp_configs" / "fsdp"
NAMES = ("resnet_small", "mlp_512x3")
CONFIG = """
general: {{device: cpu, complete_verifier: skip, results_file: ""}}
model: {{onnx_path: ../generated_models/{name}.onnx}}
specification: {{vnnlib_path: ../generated_models/{name}.vnnlib}}
attack: {{pgd_order: skip}}
solver: {{bound_prop_method: ibp}}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config beside a folder that does not exist yet, seen from another folder."""
    for folder in ("configs", "cwd"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    path = tmp_path / "configs" / "x.yaml"
    path.write_text(CONFIG.format(name="mlp_512x3"), encoding="utf-8")
    return path


def test_the_first_run_makes_the_files_beside_the_config_and_says_so(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = config.parent.parent / "generated_models"
    assert main(["--config", str(config)]) == 0
    said = capsys.readouterr().out
    assert "mlp_512x3.onnx is not there yet: making it (scripts/make_models.py)" in said
    assert "mlp_512x3: 0.9 million parameters, written to" in said
    assert sorted(path.name for path in folder.iterdir()) == ["mlp_512x3.onnx", "mlp_512x3.vnnlib"]
    made = (folder / "mlp_512x3.onnx").stat().st_mtime_ns
    assert main(["--config", str(config)]) == 0
    assert "making it" not in capsys.readouterr().out
    assert (folder / "mlp_512x3.onnx").stat().st_mtime_ns == made


def test_a_name_that_no_stand_in_has_is_an_error_that_lists_the_names(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.format(name="resnet_huge"), encoding="utf-8")
    assert main(["--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert "resnet_huge.onnx: it could not be made" in error and "resnet_large" in error


def test_a_file_in_another_folder_is_never_made(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text(encoding="utf-8").replace("generated_models", "networks")
    config.write_text(text, encoding="utf-8")
    assert main(["--config", str(config)]) == 2
    assert "not found" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_files_hold_the_network_and_a_property_true_of_the_image(name: str, tmp_path: Path) -> None:
    stand_in = stand_ins.STAND_INS[name]
    stand_ins.write_stand_in(stand_in, tmp_path)
    network, label, rivals = stand_in.network()
    image = stand_in.image.unsqueeze(0)
    session = onnxruntime.InferenceSession(
        str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"]
    )
    (scores,) = session.run(None, {"input": image.numpy()})
    # float32 sums in another order; scores are of order 1
    np.testing.assert_allclose(scores, network(image).detach().numpy(), atol=1e-4)
    (region,) = read_vnnlib(tmp_path / f"{name}.vnnlib").regions
    middle = image.double().flatten().numpy()
    assert np.array_equal(region.lower, middle - stand_in.radius)
    assert np.array_equal(region.upper, middle + stand_in.radius)
    assert len(region.clauses) == len(rivals) and label not in rivals
    assert not any(bool((c.coefficients @ scores[0] <= c.rhs).all()) for c in region.clauses)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        torch.rand(3)  # another state of torch's own generator
        stand_ins.write_stand_in(stand_ins.STAND_INS["resnet_small"], tmp_path / folder)
    for kind in ("onnx", "vnnlib"):
        one, two = ((tmp_path / f / f"resnet_small.{kind}").read_bytes() for f in ("one", "two"))
        assert one == two


def test_the_large_network_is_as_large_as_the_original() -> None:
    layers = stand_ins.STAND_INS["resnet_large"].build()
    assert sum(parameter.numel() for parameter in layers.parameters()) >= 23e6
    assert stand_ins.STAND_INS["resnet_large"].outputs == 100


def test_every_network_that_the_configs_want_made_has_a_recipe() -> None:
    wanted = set()
    for path in FSDP.glob("*.yaml"):
        named = load_config(["--config", str(path)]).config.model.onnx_path
        assert named is not None
        if Path(named).parent.name == "generated_models":
            assert (path.parent / named).resolve().parent == ROOT / "generated_models"
            wanted.add(Path(named).stem)
    assert wanted == {"resnet_large", "resnet_medium", "mlp_4096x4"}
    assert wanted <= set(stand_ins.STAND_INS)
