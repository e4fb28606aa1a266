"""An ONNX graph apart from its constants: nodes as a message, weights as arrays.

A message copies what is put into it, gives out copies, and keeps all of it until it is dropped as
a whole: passed from step to step with its weights inside, a network took nine times their size on
the host (measured, 214 MB of weights: 1 841 MB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    external_data_helper,
    helper,
    numpy_helper,
)

from complete_verifier.model.onnx_wire import Place


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
    def taken_from(cls, model: ModelProto, file: Path, places: Mapping[int, Place]) -> OnnxGraph:
        """Copy everything out of `model`, which the caller then drops to have the weights once.

        Args:
            model: as `file` has it.
            file: where the content of initialisers is, and beside which files with weights lie.
            places: of initialisers whose content `model` lacks, by position.

        Raises:
            OSError, TypeError, ValueError, onnx.checker.ValidationError: a malformed constant, or a
                file of weights that is missing or not beside the model.
        """
        folder = None if file.suffix == ".gz" else str(file.parent)
        constants = {}
        with file.open("rb") as stream:
            for position, tensor in enumerate(model.graph.initializer):
                place = places.get(position)
                constants[tensor.name] = (
                    _array(tensor, folder) if place is None else _read(tensor, stream, place)
                )
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


def _read(tensor: TensorProto, stream: BinaryIO, place: Place) -> np.ndarray:
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    stream.seek(place.offset)
    content = np.fromfile(stream, dtype=kind.newbyteorder("<"), count=place.length // kind.itemsize)
    if content.nbytes != place.length:
        raise ValueError(f'"{tensor.name}": {place.length} bytes are no whole number of elements')
    return content.astype(kind, copy=False).reshape(tensor.dims)


def _array(tensor: TensorProto, folder: str | None) -> np.ndarray:
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    if folder is None:
        raise ValueError(f'"{tensor.name}" lies in a file of its own, beside a compressed model')
    reference = TensorProto()  # small; some versions of onnx would read the content into it
    reference.CopyFrom(tensor)
    return numpy_helper.to_array(reference, folder)
