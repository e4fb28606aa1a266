"""Shapes of a graph's values for one input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, ValueInfoProto, helper

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import OnnxInput
from complete_verifier.model.onnx_graph import OnnxGraph, tensors

Shapes = Mapping[str, tuple[int, ...]]
"""Per value its shape at batch size 1; a value whose shape is not inferred is missing."""

_MOST_READ = 4096
"""Elements of a constant whose values may decide a shape (targets, axes, indices)."""


def shapes_at_batch_one(graph: OnnxGraph, network_input: OnnxInput, where: str) -> Shapes:
    """Shape inference with the input's shape fixed; the file's other claims are not trusted.

    Raises:
        ModelError: the shapes do not fit together.
    """
    fixed = helper.make_tensor_value_info(
        network_input.name, onnx.TensorProto.FLOAT, network_input.shape
    )
    known = {n: a for n, a in graph.constants.items() if a.size <= _MOST_READ}
    weights = {n: a for n, a in graph.constants.items() if a.size > _MOST_READ}
    parsed = graph.model.graph
    shaped = GraphProto(
        name="shapes",
        node=parsed.node,
        initializer=tensors(known),
        input=[fixed, *(_typed(name, content) for name, content in weights.items())],
        output=[helper.make_empty_tensor_value_info(v.name) for v in parsed.output],
    )
    opsets = list(graph.model.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(shaped, opset_imports=opsets), data_prop=True
        ).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(
            f"{where}: the shapes of the network do not fit together: "
            f"{' '.join(str(error).split())}"
        ) from error
    shapes = {name: content.shape for name, content in graph.constants.items()}
    for value in [*inferred.input, *inferred.value_info, *inferred.output]:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return shapes


def _typed(name: str, content: np.ndarray) -> ValueInfoProto:
    """Type and shape of a weight, which is all that shapes can depend on."""
    kind = helper.np_dtype_to_tensor_dtype(content.dtype)
    return helper.make_tensor_value_info(name, kind, content.shape)
