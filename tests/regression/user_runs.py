"""What a user has in hand: small ONNX files, VNN-LIB texts, and the program to run on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT.parent / "shared" / "benchmarks"

# Little effort, so that a run takes a fraction of a second.
LITTLE = ("--pgd_steps", "20", "--pgd_restarts", "5", "--init_iteration", "10")


@dataclass(frozen=True)
class Run:
    """What one run of the program left behind."""

    code: int
    stdout: str
    stderr: str
    records: list[dict[str, Any]]

    @property
    def verdict(self) -> str:
        """The verdict of the only instance."""
        (record,) = self.records
        return str(record["verdict"])

    @property
    def verdicts(self) -> list[str]:
        """The verdicts in the order of the instances."""
        return [str(record["verdict"]) for record in self.records]


def read_json(path: Path) -> list[dict[str, Any]]:
    """The records written so far; none where the file was never made."""
    return json.loads(path.read_text()) if path.exists() else []


def save_network(
    path: Path,
    nodes: Sequence[NodeProto],
    constants: Mapping[str, Any],
    input_shape: Sequence[int | str],
) -> Path:
    """Write a network whose nodes read "x" and end in "y"; constants become float32."""
    arrays = {
        name: np.asarray(value, dtype=np.int64 if name.endswith("shape") else np.float32)
        for name, value in constants.items()
    }
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info("x", float32, list(input_shape))],
        [helper.make_tensor_value_info("y", float32, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def save_mlp(path: Path, *layers: tuple[Any, Any], last_relu: bool = False) -> Path:
    """Write a chain of (weight [out, in], bias [out]) layers with ReLU between them."""
    nodes: list[NodeProto] = []
    constants: dict[str, Any] = {}
    current = "x"
    for number, (weight, bias) in enumerate(layers):
        constants[f"w{number}"], constants[f"b{number}"] = weight, bias
        is_last = number == len(layers) - 1
        out = "y" if is_last and not last_relu else f"h{number}"
        inputs = [current, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("Gemm", inputs, [out], transB=1))
        if not is_last or last_relu:
            current = "y" if is_last else f"r{number}"
            nodes.append(helper.make_node("Relu", [out], [current]))
    num_inputs = np.asarray(layers[0][0]).shape[1]
    return save_network(path, nodes, constants, (1, num_inputs))


def random_mlp(path: Path, sizes: Sequence[int], seed: int = 0, scale: float = 1.0) -> Path:
    """Write a chain of random layers; `scale` multiplies the last one."""
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(size=(out, into)) / np.sqrt(into), 0.1 * rng.normal(size=out))
        for into, out in zip(sizes, sizes[1:], strict=False)
    ]
    weight, bias = layers[-1]
    return save_mlp(path, *layers[:-1], (scale * weight, scale * bias))


def vnnlib(
    lower: Sequence[float], upper: Sequence[float], num_outputs: int, *assertions: str
) -> str:
    """The text of a property over a box: each assertion is the inside of one `(assert …)`."""
    lines = [f"(declare-const X_{i} Real)" for i in range(len(lower))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(num_outputs)]
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        lines.append(f"(assert (>= X_{i} {decimal(low)}))")
        lines.append(f"(assert (<= X_{i} {decimal(high)}))")
    return "\n".join([*lines, *(f"(assert {text})" for text in assertions)]) + "\n"


def decimal(value: float) -> str:
    """The number without an exponent, as VNN-LIB files write it."""
    return np.format_float_positional(float(value), trim="0")
