"""Host memory while a network is loaded, in a fresh process, by the kernel's high-water mark.

A failure means that a network that fits on the ranks together cannot be loaded on their host: a
step keeps, or makes, a copy of all weights of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

REPOSITORY = Path(__file__).resolve().parents[3]
WIDTH, DEPTH = 2048, 4
LAYER = 4 * WIDTH * WIDTH
WEIGHTS = DEPTH * LAYER
MIB = 1 << 20
SLACK = 6 * MIB
"""Code and libraries that only a large file touches."""

MEASURE = """
import gc, sys
from pathlib import Path
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.model.host_memory import give_back
from complete_verifier.model.network import load_network

def high_water():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

small, *large = sys.argv[1:]
load_network(small, OneRankWeights())  # imports, and what they allocate once
for path in large:
    give_back(1 << 30)
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    weights = OneRankWeights()
    load_network(path, weights)
    print(high_water() - before, weights.full_bytes)
    del weights
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the high-water mark is Linux's"
)


def _write_mlp(path: Path, width: int, operator: str, *, external: bool) -> None:
    """An MLP of square layers; as a MatMul its weights are stored for x W, else for x Wᵀ."""
    random = np.random.default_rng(0)
    nodes, constants, value = [], [], "x"
    for number in range(DEPTH):
        matrix = random.standard_normal((width, width), dtype=np.float32)
        constants.append(numpy_helper.from_array(matrix / np.float32(width) ** 0.5, f"W{number}"))
        attributes = {"transB": 1} if operator == "Gemm" else {}
        result = "y" if number == DEPTH - 1 else f"h{number}"
        nodes.append(helper.make_node(operator, [value, f"W{number}"], [result], **attributes))
        value = f"r{number}"
        nodes.append(helper.make_node("Relu", [result], [value]))
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes[:-1],
        "mlp",
        [helper.make_tensor_value_info("x", float32, [1, width])],
        [helper.make_tensor_value_info("y", float32, [1, width])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data")


def test_host_holds_one_copy_of_the_weights_and_a_layer(
    tmp_path: Path,
) -> None:
    files = [tmp_path / f"{name}.onnx" for name in ("small", "inside", "beside")]
    _write_mlp(files[0], 8, "Gemm", external=False)
    _write_mlp(files[1], WIDTH, "Gemm", external=False)
    _write_mlp(files[2], WIDTH, "MatMul", external=True)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, files)],
        cwd=REPOSITORY,
        env={
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            "PATH": "",
            # What is freed goes back at once; else glibc keeps up to three layers by and by.
            "MALLOC_MMAP_THRESHOLD_": str(MIB),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert measured.returncode == 0, measured.stderr
    assert len(measured.stdout.splitlines()) == 2
    for line in measured.stdout.splitlines():
        peak, weights = map(int, line.split())
        assert WEIGHTS <= weights <= 1.01 * WEIGHTS
        allowed = WEIGHTS + LAYER + SLACK
        assert peak <= allowed, f"{peak / MIB:.1f} MiB, at most {allowed / MIB:.1f} allowed"
        assert peak > WEIGHTS / 2, "the weights themselves were not counted"
