"""Small ONNX files made in the test, and the comparison of what is loaded with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, helper, numpy_helper

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from complete_verifier.model.agreement import check_agreement
from complete_verifier.model.normalise import normalise
from complete_verifier.model.onnx_file import read_onnx
from complete_verifier.model.onnx_session import OnnxSession
from complete_verifier.model.onnx_torch import to_torch

WriteOnnx = Callable[..., Path]


@pytest.fixture
def write_onnx(tmp_path: Path) -> WriteOnnx:
    """Writes a network of the given nodes, which read "x" and end in "y"."""

    def write(
        nodes: Sequence[NodeProto],
        input_shape: Sequence[int | str],
        constants: dict[str, Any] | None = None,
        opset: int = 13,
        constants_are_inputs: bool = False,
    ) -> Path:
        arrays = {
            name: np.asarray(value, dtype=np.int64 if name.endswith("shape") else np.float32)
            for name, value in (constants or {}).items()
        }
        float32 = onnx.TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info("x", float32, input_shape)]
        if constants_are_inputs:
            inputs += [
                helper.make_tensor_value_info(n, float32, a.shape) for n, a in arrays.items()
            ]
        graph = helper.make_graph(
            list(nodes),
            "network",
            inputs,
            [helper.make_tensor_value_info("y", float32, None)],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        path = tmp_path / "network.onnx"
        onnx.save(model, path)
        return path

    return write


def worst_difference(path: Path) -> tuple[float, Any]:
    """Returns (auto_LiRPA's graph against onnxruntime, that graph); raises where loading does.

    The graph runs all inputs as one batch, so a baked-in batch size shows.
    """
    file = read_onnx(path)
    example = torch.zeros(1, *file.input.sample_shape)
    module = to_torch(normalise(file), example, str(path))
    graph = build_bounded_module(module, example)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return graph(x.reshape(-1, *file.input.sample_shape)).flatten(1)

    session = OnnxSession(path, file.input.shape)
    check_agreement(lambda x: module(x.reshape(-1, *example.shape[1:])), session, "torch")
    return check_agreement(forward, session, str(path)), graph


@pytest.fixture
def load_and_compare() -> Callable[[Path], tuple[float, Any]]:
    return worst_difference
