"""Weights read past protobuf are those that protobuf reads, and odd files are left to it.

A failure means a network with weights of another file's bytes; loading would refuse it only where
onnxruntime's answers differ enough.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from complete_verifier.model.onnx_file import read_onnx
from complete_verifier.model.onnx_wire import split_weights

RNG = np.random.default_rng(5)
LARGE = {
    "float": RNG.standard_normal((17, 33)).astype(np.float32),
    "double": RNG.standard_normal((7, 5, 9)),
    "half": RNG.standard_normal((600,)).astype(np.float16),
    "int64": RNG.integers(-(2**62), 2**62, (200,)),
    "int32": RNG.integers(-(2**30), 2**30, (20, 20)).astype(np.int32),
    "bytes": RNG.integers(0, 255, (40, 30)).astype(np.uint8),
    "bools": RNG.integers(0, 2, (1100,)).astype(bool),
    "small": RNG.standard_normal((3, 4)).astype(np.float32),
    "number": np.array(2.5, dtype=np.float32),
}


def _model(initialisers: list[TensorProto]) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, None)],
        initialisers,
    )
    return helper.make_model(graph, producer_name="a test", doc_string="words " * 500)


def _tensors() -> list[TensorProto]:
    listed = helper.make_tensor("listed", TensorProto.FLOAT, [400], [0.5] * 400)
    raw = [numpy_helper.from_array(array, name) for name, array in LARGE.items()]
    return [*raw[:4], listed, *raw[4:]]


def test_arrays_are_those_of_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(_model(_tensors()), path)
    found = read_onnx(path).graph.constants
    assert found["listed"].tolist() == [0.5] * 400
    for name, array in LARGE.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_the_message_lacks_large_content_and_nothing_else() -> None:
    model = _model(_tensors())
    split = split_weights(memoryview(model.SerializeToString()))
    assert split is not None
    names = [tensor.name for tensor in model.graph.initializer]
    large = set(LARGE) - {"small", "number"} | {"listed"}
    assert {names[position] for position in split.places} == large
    light = onnx.load_model_from_string(split.message)
    for position in split.places:
        whole, lacking = model.graph.initializer[position], light.graph.initializer[position]
        if whole.float_data:
            lacking.float_data.extend(whole.float_data)
        else:
            lacking.raw_data = whole.raw_data
    assert light == model


def test_content_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    from complete_verifier.model.errors import ModelError

    for change in (b"\0", b"\0" * 4):
        tensor = numpy_helper.from_array(LARGE["float"], "w")
        tensor.raw_data += change
        onnx.save(_model([tensor]), tmp_path / "net.onnx")
        with pytest.raises(ModelError, match="a constant of the network is malformed"):
            read_onnx(tmp_path / "net.onnx")


@pytest.mark.parametrize("odd", ["twice", "in a file", "packed", "group"])
def test_what_is_out_of_the_ordinary_is_left_to_protobuf(odd: str) -> None:
    tensor = numpy_helper.from_array(LARGE["float"], "w")
    if odd == "in a file":
        tensor.data_location = TensorProto.EXTERNAL
    if odd == "packed":
        tensor.data_type = TensorProto.INT4
    content = _model([tensor]).SerializeToString()
    if odd == "twice":  # protobuf merges the two graphs
        content += _model([tensor]).SerializeToString()
    if odd == "group":
        content += bytes([(99 << 3 | 3) & 0x7F | 0x80, 6])
    split = split_weights(memoryview(content))
    assert split is None or not split.places
