"""Shapes of a graph's values for one input."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import GraphProto, ModelProto, helper

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import OnnxInput

Shapes = Mapping[str, tuple[int, ...]]
"""Per value its shape at batch size 1; a value whose shape is not inferred is missing."""


def shapes_at_batch_one(model: ModelProto, network_input: OnnxInput, where: str) -> Shapes:
    """Shape inference with the input's shape fixed; the file's other claims are not trusted.

    Raises:
        ModelError: the shapes do not fit together.
    """
    fixed = helper.make_tensor_value_info(
        network_input.name, onnx.TensorProto.FLOAT, network_input.shape
    )
    graph = GraphProto(
        name="shapes",
        node=model.graph.node,
        initializer=model.graph.initializer,
        input=[fixed],
        output=[helper.make_empty_tensor_value_info(v.name) for v in model.graph.output],
    )
    opsets = list(model.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets), data_prop=True
        ).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise ModelError(
            f"{where}: the shapes of the network do not fit together: "
            f"{' '.join(str(error).split())}"
        ) from error
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in [*inferred.input, *inferred.value_info, *inferred.output]:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return shapes
