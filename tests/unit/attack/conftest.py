"""Small ReLU networks, as torch functions and as ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from complete_verifier.specification import Clause, Region


@dataclass(frozen=True)
class Mlp:
    """x -> W_n relu(... relu(W_1 x + b_1) ...) + b_n, float32."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]  # ([out, in], [out]) each

    def forward(self, x: Tensor) -> Tensor:
        """[B, I] -> [B, O]."""
        for index, (weight, bias) in enumerate(self.layers):
            x = x @ torch.from_numpy(weight).to(x.dtype).T + torch.from_numpy(bias).to(x.dtype)
            x = torch.relu(x) if index + 1 < len(self.layers) else x
        return x

    def save(self, path: Path) -> Path:
        """Write the network as ONNX with input [1, I]."""
        nodes, constants, name = [], [], "x"
        for index, (weight, bias) in enumerate(self.layers):
            constants.append(numpy_helper.from_array(weight, f"w{index}"))
            constants.append(numpy_helper.from_array(bias, f"b{index}"))
            last = index + 1 == len(self.layers)
            out = "y" if last else f"h{index}"
            inputs = [name, f"w{index}", f"b{index}"]
            nodes.append(helper.make_node("Gemm", inputs, [out], transB=1))
            name = out
            if not last:
                nodes.append(helper.make_node("Relu", [out], [f"r{index}"]))
                name = f"r{index}"
        num_inputs, num_outputs = self.layers[0][0].shape[1], self.layers[-1][0].shape[0]
        graph = helper.make_graph(
            nodes,
            "mlp",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, num_inputs])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, num_outputs])],
            constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        model.ir_version = 8
        onnx.save(model, str(path))
        return path


def mlp(*layers: tuple[object, object]) -> Mlp:
    """Build an `Mlp` from nested lists."""
    return Mlp(tuple((np.float32(weight), np.float32(bias)) for weight, bias in layers))


def random_mlp(sizes: Sequence[int], seed: int) -> Mlp:
    """An `Mlp` with normal weights of the usual size."""
    random = np.random.default_rng(seed)
    return mlp(
        *(
            (random.normal(size=(out, into)) / into**0.5, random.normal(size=out) * 0.1)
            for into, out in zip(sizes[:-1], sizes[1:], strict=True)
        )
    )


def region(
    lower: Sequence[float], upper: Sequence[float], *clauses: tuple[object, object]
) -> Region:
    """A region; each clause is (coefficients, rhs)."""
    return Region(
        np.float64(lower),
        np.float64(upper),
        tuple(Clause(np.float64(rows), np.float64(rhs)) for rows, rhs in clauses),
    )


@pytest.fixture
def build() -> type:
    """The builders above, for tests in other files."""

    class Build:
        mlp = staticmethod(mlp)
        random_mlp = staticmethod(random_mlp)
        region = staticmethod(region)

    return Build
