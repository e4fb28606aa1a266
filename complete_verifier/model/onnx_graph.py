"""An ONNX graph apart from its constants: nodes as a message, weights as arrays.

A message copies what is put into it, gives out copies, and keeps all of it until it is dropped as
a whole: passed from step to step with its weights inside, a network took nine times their size on
the host (measured, 214 MB of weights: 1 841 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, external_data_helper, numpy_helper


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A model and its constants.

    Attributes:
        model: holds no initialiser and no Constant node with a tensor.
        constants: by name; no array is written to, and several may share memory.
    """

    model: ModelProto
    constants: dict[str, np.ndarray]

    @classmethod
    def taken_from(cls, model: ModelProto, folder: str | None) -> OnnxGraph:
        """Copy everything out of `model`, which the caller then drops to have the weights once.

        Args:
            folder: where files with weights lie beside the model; None if there can be none.

        Raises:
            OSError, TypeError, ValueError, onnx.checker.ValidationError: a malformed constant, or a
                file of weights that is missing or not beside the model.
        """
        constants = {t.name: _array(t, folder) for t in model.graph.initializer}
        nodes = []
        for node in model.graph.node:
            tensor = _held_tensor(node)
            if tensor is None:
                nodes.append(node)
            else:
                constants[node.output[0]] = _array(tensor, folder)
        graph = GraphProto(
            name="apart", node=nodes, input=model.graph.input, output=model.graph.output
        )
        apart = ModelProto(
            ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
        )
        return cls(apart, constants)


def tensors(constants: Mapping[str, np.ndarray]) -> list[TensorProto]:
    """Returns initialisers with copies of the arrays."""
    return [
        numpy_helper.from_array(np.asarray(content, order="C"), name)
        for name, content in constants.items()
    ]


def _held_tensor(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node that has one and nothing else."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or len(node.output) != 1:
        return None
    attribute = node.attribute[0]
    return attribute.t if attribute.name == "value" and attribute.HasField("t") else None


def _array(tensor: TensorProto, folder: str | None) -> np.ndarray:
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    if folder is None:
        raise ValueError(f'"{tensor.name}" lies in a file of its own, beside a compressed model')
    reference = TensorProto()  # small; some versions of onnx would read the content into it
    reference.CopyFrom(tensor)
    return numpy_helper.to_array(reference, folder)
