"""An ONNX graph apart from its constants: nodes as a message, weights as arrays.

A message copies what is put into it, gives out copies, and keeps all of it until it is dropped as
a whole: passed from step to step with its weights inside, a network took nine times their size on
the host (measured, 214 MB of weights: 1 841 MB).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
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

from complete_verifier.model.constant_store import ConstantStore
from complete_verifier.model.onnx_wire import PLAIN_TYPES, Place


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A model and its constants.

    Attributes:
        model: holds no initialiser and no Constant node with a tensor.
        constants: by name; no array is written to, and several may share memory.
        store: where large ones lie.
    """

    model: ModelProto
    constants: dict[str, np.ndarray]
    store: ConstantStore = ConstantStore()

    @classmethod
    def taken_from(
        cls,
        model: ModelProto,
        stream: BinaryIO,
        places: Mapping[int, Place],
        folder: Path | None,
        store: ConstantStore,
    ) -> OnnxGraph:
        """Copy everything out of `model`, which the caller then drops to have the weights once.

        Args:
            model: as its file has it.
            stream: where the content of initialisers is.
            places: of initialisers whose content `model` lacks, by position.
            folder: where files with weights lie; None where they cannot.
            store: takes the constants.

        Raises:
            OSError, TypeError, ValueError, onnx.checker.ValidationError: a malformed constant, or a
                file of weights that is missing or not beside the model.
        """
        constants = {}
        for position, tensor in enumerate(model.graph.initializer):
            place = places.get(position)
            constants[tensor.name] = (
                _array(tensor, folder, store)
                if place is None
                else _read(tensor, stream, place, store)
            )
        nodes = []
        for node in model.graph.node:
            tensor = _held_tensor(node)
            if tensor is None:
                nodes.append(node)
            else:
                constants[node.output[0]] = _array(tensor, folder, store)
        graph = GraphProto(
            name="apart", node=nodes, input=model.graph.input, output=model.graph.output
        )
        apart = ModelProto(
            ir_version=model.ir_version, opset_import=model.opset_import, graph=graph
        )
        return cls(apart, constants, store)


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


def _read(tensor: TensorProto, stream: BinaryIO, place: Place, store: ConstantStore) -> np.ndarray:
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if math.prod(shape) * kind.itemsize != place.length:
        raise ValueError(
            f'"{tensor.name}": {place.length} bytes are not the content of a {kind} array '
            f"of shape {list(shape)}"
        )
    return store.read(stream, place.offset, kind, shape)


def _array(tensor: TensorProto, folder: Path | None, store: ConstantStore) -> np.ndarray:
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    if folder is None:
        raise ValueError(f'"{tensor.name}" lies in a file of its own, beside a compressed model')
    place = _place_beside(tensor, folder) if store.on_disk else None
    if place is not None:
        with place[0].open("rb") as stream:
            return _read(tensor, stream, place[1], store)
    reference = TensorProto()  # small; some versions of onnx would read the content into it
    reference.CopyFrom(tensor)
    return numpy_helper.to_array(reference, str(folder))


def _place_beside(tensor: TensorProto, folder: Path) -> tuple[Path, Place] | None:
    """The file of an initialiser's content, and where in it; None where onnx had better look."""
    info = external_data_helper.ExternalDataInfo(tensor)
    parts = PurePosixPath(info.location).parts
    path = folder.joinpath(*parts)
    steps = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    strays = ".." in parts or PurePosixPath(info.location).is_absolute()
    if strays or any(step.is_symlink() for step in steps) or not path.is_file():
        return None
    if info.length is None or tensor.data_type not in PLAIN_TYPES:
        return None
    return path, Place(info.offset or 0, info.length)
