"""`load_network`: from a file to a graph that runs, on real and on made-up networks.

The real ones are every network of the VNN-COMP categories that the engine supports; a failure
means that an instance of that category ends in `error`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper

from auto_LiRPA_patches.errors import UnsupportedOperatorError
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.model.errors import ModelError
from complete_verifier.model.network import load_network
from complete_verifier.model.replay import run_onnx

REPOSITORY = Path(__file__).resolve().parents[3]
BENCHMARKS = REPOSITORY.parent / "shared" / "benchmarks"
CATEGORIES = (
    "vnncomp2021/cifar10_resnet",
    "vnncomp2021/eran",
    "vnncomp2021/marabou-cifar10",
    "vnncomp2022/acasxu",
    "vnncomp2022/collins_rul_cnn",
    "vnncomp2022/mnist_fc",
    "vnncomp2022/oval21",
    "vnncomp2022/reach_prob_density",
    "vnncomp2022/rl_benchmarks",
    "vnncomp2022/sri_resnet_a",
    "vnncomp2022/test",
    "vnncomp2022/tllverifybench",
    "vnncomp2023/dist_shift",
)

needs_benchmarks = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason=f"no VNN-COMP files at {BENCHMARKS}"
)


@needs_benchmarks
@pytest.mark.benchmarks
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_network_of_the_category_agrees_with_onnxruntime(category: str) -> None:
    paths = sorted((BENCHMARKS / category).rglob("*.onnx.gz"))
    assert paths
    for path in paths:
        network = load_network(path, OneRankWeights())
        x = torch.rand(3, network.num_inputs, generator=torch.Generator().manual_seed(1))
        y = network.forward(x).detach().numpy()
        assert y.shape == (3, network.num_outputs)
        expected = np.stack([run_onnx(path, row.numpy()) for row in x])
        assert np.max(np.abs(y - expected) / np.maximum(1, np.abs(expected))) < 1e-4


@needs_benchmarks
@pytest.mark.benchmarks
def test_input_shapes_of_real_networks() -> None:
    mnist = load_network(
        BENCHMARKS / "vnncomp2022/mnist_fc/onnx/mnist-net_256x2.onnx", OneRankWeights()
    )
    assert (mnist.input_shape, mnist.onnx_input_shape) == ((784, 1), (1, 784, 1))
    assert (mnist.num_inputs, mnist.num_outputs) == (784, 10)
    small = load_network(BENCHMARKS / "vnncomp2022/test/test_small.onnx", OneRankWeights())
    assert (small.input_shape, small.onnx_input_shape, small.num_outputs) == ((1,), (1,), 1)


@needs_benchmarks
@pytest.mark.benchmarks
def test_loading_again_takes_no_seconds() -> None:
    path = BENCHMARKS / "vnncomp2022/mnist_fc/onnx/mnist-net_256x6.onnx"
    load_network(path, OneRankWeights())
    fastest = min(_seconds_to_load(path) for _ in range(3))
    assert fastest < 3.0, f"{fastest} s; building the graph alone takes about 0.1 s"


def _seconds_to_load(path: Path) -> float:
    start = time.perf_counter()
    load_network(path, OneRankWeights(), check=False)
    return time.perf_counter() - start


def mlp(write_onnx) -> Path:
    rng = np.random.default_rng(0)
    return write_onnx(
        [
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("Gemm", ["f", "W", "b"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "V"], ["y"], transB=1),
        ],
        [1, 1, 2, 3],
        {"W": rng.normal(size=(5, 6)), "b": rng.normal(size=5), "V": rng.normal(size=(2, 5))},
    )


def test_forward_takes_flat_and_shaped_inputs_and_is_differentiable(write_onnx) -> None:
    network = load_network(mlp(write_onnx), OneRankWeights())
    x = torch.rand(4, 6, requires_grad=True)
    y = network.forward(x)
    assert torch.equal(y, network.forward(x.reshape(4, 1, 2, 3)))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def test_forward_of_another_size_is_refused(write_onnx) -> None:
    network = load_network(mlp(write_onnx), OneRankWeights())
    with pytest.raises(ModelError, match=r"\[B, 1, 2, 3\] or \[B, 6\], got \[4, 5\]"):
        network.forward(torch.rand(4, 5))


def test_all_parameters_are_registered_once(write_onnx) -> None:
    """Zero biases included: 5x6 + 5, 2x5 + 2."""
    weights = OneRankWeights()
    load_network(mlp(write_onnx), weights)
    assert sum(share.full_numel for share in weights.share()) == 30 + 5 + 10 + 2


def test_unknown_operator_is_refused_at_load_with_its_name(write_onnx) -> None:
    path = write_onnx([helper.make_node("Acosh", ["x"], ["y"])], [1, 3])
    with pytest.raises(UnsupportedOperatorError, match="Acosh"):
        load_network(path, OneRankWeights())


def test_loading_is_silent_and_imports_no_heavy_extras(write_onnx) -> None:
    """torchvision alone would add two seconds to every start."""
    finished = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights\n"
            "from complete_verifier.model.network import load_network\n"
            f"load_network({str(mlp(write_onnx))!r}, OneRankWeights())\n"
            "heavy = ('torchvision', 'torch._dynamo', 'sympy', 'setuptools')\n"
            "print([name for name in heavy if name in sys.modules])",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (finished.stdout.strip(), finished.stderr) == ("[]", "")
