"""PyTorch networks by name: the published layer sizes, and parameters from a state_dict.

A failure means that a published config loads another network than its authors', or code from a
checkpoint is run.
"""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from complete_verifier.config import ConfigError, InputPaths, load_config
from complete_verifier.extensions import Extensions
from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_session import OnnxSession
from complete_verifier.model.zoo import architecture, architecture_names
from complete_verifier.model.zoo.chain import chain
from complete_verifier.network_source import NetworkSource, network_source

BENCHMARKS = Path(__file__).resolve().parents[4] / "shared" / "benchmarks"
PUBLISHED = {
    "cifar_model_base": "vnncomp2022/oval21/onnx/cifar_base_kw.onnx.gz",
    "cifar_model_wide": "vnncomp2022/oval21/onnx/cifar_wide_kw.onnx.gz",
    "cifar_model_deep": "vnncomp2022/oval21/onnx/cifar_deep_kw.onnx.gz",
    "resnet2b": "vnncomp2021/cifar10_resnet/onnx/resnet_2b.onnx.gz",
    "resnet4b": "vnncomp2021/cifar10_resnet/onnx/resnet_4b.onnx.gz",
}


@pytest.mark.parametrize("name", ["resnet2b", "cresnet7_4_avg_bn", "cnn_4layer_b", "mnist_6_100"])
def test_a_network_of_the_list_gives_ten_scores(name: str) -> None:
    found = architecture(name)
    assert found.build().eval()(torch.rand(2, *found.input_shape)).shape == (2, 10)


def test_every_family_of_published_configs_has_its_names() -> None:
    names = set(architecture_names())
    assert {"cnn_4layer", "cnn_4layer_adv", "mnist_cnn_4layer", "mnist_conv_big"} <= names
    assert {"cifar_conv_big", "mnist_9_200", "cresnet5_16_dense_bn", "cresnet7_8_avg"} <= names


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_give_the_published_outputs(name: str) -> None:
    """The layer sizes and the wiring are those of the ONNX file published with the weights."""
    path = BENCHMARKS / PUBLISHED[name]
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    proto = onnx.load_from_string(gzip.open(path).read())
    arrays = [numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    given = {(a.shape, float(np.abs(a).sum())): a for a in arrays if a.dtype == np.float32}
    keys = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    module = architecture(name).build().eval()
    own = module.state_dict()
    if set(own) <= set(keys):
        filled = {key: torch.tensor(keys[key]) for key in own}
    else:  # names are numbers: the order is that of the layers
        order = [a for a in arrays if a.dtype == np.float32 and a.ndim > 0]
        filled = _in_order(own, order)
    assert len(given) >= len(own) - 1
    module.load_state_dict(filled)
    session = OnnxSession(path)
    rows = np.random.default_rng(0).random((3, 3072), dtype=np.float32)
    ours = module(torch.from_numpy(rows).view(3, 3, 32, 32)).detach().numpy()
    np.testing.assert_allclose(ours, session.run(rows), rtol=1e-3, atol=1e-3)


def _in_order(own: dict[str, torch.Tensor], arrays: list[np.ndarray]) -> dict[str, torch.Tensor]:
    left = list(arrays)
    filled = {}
    for key, value in own.items():
        place = next(i for i, array in enumerate(left) if array.shape == tuple(value.shape))
        filled[key] = torch.tensor(left.pop(place))
    return filled


def test_a_line_of_layers_keeps_published_positions() -> None:
    net = chain("c4k3p1 b m2 c4k4s2p1 f8 f3", (1, 8, 8))
    kinds = [type(part).__name__ for part in net]
    assert kinds == [
        *("Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU"),
        *("Flatten", "Linear", "ReLU", "Linear"),
    ]
    with pytest.raises(ValueError, match="'q3' is no layer"):
        chain("q3", (1, 8, 8))


def source(folder: Path, *flags: str, extensions: list[Path] | None = None) -> NetworkSource:
    loaded = load_config(flags)
    return network_source(loaded.config, InputPaths(), Extensions(extensions or []), folder)


def test_parameters_come_from_a_state_dict(tmp_path: Path) -> None:
    module = architecture("mnist_fc").build().eval()
    for content in (module.state_dict(), {"state_dict": module.state_dict()}):
        torch.save(content, tmp_path / "net.pth")
        found = source(tmp_path, "--model", "mnist_fc", "--load_model", str(tmp_path / "net.pth"))
        assert found.name == "mnist_fc net.pth"
        rows = np.random.default_rng(0).random((2, 784), dtype=np.float32)
        ours = module(torch.from_numpy(rows)).detach().numpy()
        np.testing.assert_allclose(OnnxSession(found.onnx).run(rows), ours, rtol=1e-5, atol=1e-5)


class Dangerous:
    """Would be run by an unpickler that trusts its file."""

    def __reduce__(self) -> tuple:
        raise_here = "raise SystemError('code of a checkpoint was run')"
        return exec, (raise_here,)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    (tmp_path / "net.pth").write_bytes(pickle.dumps(Dangerous()))
    with pytest.raises(ModelError, match="expected a state_dict as torch.save writes it"):
        source(tmp_path, "--model", "mnist_fc", "--load_model", str(tmp_path / "net.pth"))


def test_parameters_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "net.pth")
    with pytest.raises(ModelError, match=r"1.bias: expected \[10\], got none; .* and 5 more"):
        source(tmp_path, "--model", "mnist_fc", "--load_model", str(tmp_path / "net.pth"))


def test_a_name_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model.path: expected the parameters of mnist_fc"):
        source(tmp_path, "--model", "mnist_fc")


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'resnet1000' is not known. Known are MadryCNN, "):
        source(tmp_path, "--model", "resnet1000")


def test_a_function_of_the_users_own_builds_the_network(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef net(width):\n    return nn.Linear(4, width)\n"
    )
    flags = ("--model", 'Customized("mine", "net", width=3)', "--input_shape", "-1", "4")
    found = source(tmp_path, *flags, extensions=[tmp_path / "mine.py"])
    assert OnnxSession(found.onnx).run(np.zeros((1, 4), dtype=np.float32)).shape == (1, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Customized("other", "net")', "the module other was not allowed to run"),
        ('Customized("mine", "nett")', "the module mine has no function nett"),
        ('Customized("mine", "net", width=print(1))', "expected arguments such as width=2"),
        ('Customized("mine", "net", 3)', "expected arguments such as width=2"),
        ('Customized("broken", "net")', "fails when it is imported: ZeroDivisionError"),
    ],
)
def test_only_functions_that_were_allowed_are_called(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def net(width):\n    return None\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    files = [tmp_path / "mine.py", tmp_path / "broken.py"]
    with pytest.raises(ConfigError, match=message):
        source(tmp_path, "--model", text, extensions=files)
