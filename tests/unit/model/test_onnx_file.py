"""Reading ONNX files: what is stated about the input, and what is wrong with a bad file.

A failure means a traceback in place of a sentence, or a network read with the wrong input shape.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import read_onnx

RELU = [helper.make_node("Relu", ["x"], ["y"])]


@pytest.mark.parametrize(
    ("stated", "shape", "sample"),
    [
        ([1, 3, 8, 8], (1, 3, 8, 8), (3, 8, 8)),
        (["batch", 3, 8, 8], (1, 3, 8, 8), (3, 8, 8)),
        ([-1, 5], (1, 5), (5,)),
        ([0, 5], (1, 5), (5,)),
        ([1, 784, 1], (1, 784, 1), (784, 1)),
        ([5], (5,), (5,)),
        ([1], (1,), (1,)),
        ([784, 1], (784, 1), (784, 1)),
    ],
)
def test_input_shape_and_batch_axis(write_onnx, stated, shape, sample) -> None:
    found = read_onnx(write_onnx(RELU, stated)).input
    assert found.shape == shape
    assert found.sample_shape == sample


def test_gzipped_sibling_is_read(write_onnx) -> None:
    path = write_onnx(RELU, [1, 4])
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_onnx(path).path == packed
    assert read_onnx(packed).input.shape == (1, 4)


def test_initialisers_listed_as_inputs_are_not_inputs(write_onnx) -> None:
    gemm = [helper.make_node("Gemm", ["x", "W"], ["y"])]
    path = write_onnx(gemm, [1, 4], {"W": np.ones((4, 2))}, constants_are_inputs=True)
    assert read_onnx(path).input.name == "x"


def test_double_precision_input_is_refused(write_onnx) -> None:
    path = write_onnx(RELU, [1, 4])
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(model, path)
    with pytest.raises(ModelError, match='input "x": expected float32, got DOUBLE'):
        read_onnx(path)


# model.input_shape (field case 24, the model's side).


def test_config_fills_in_what_the_file_leaves_open(write_onnx) -> None:
    path = write_onnx(RELU, ["N", 3, "H", "W"])
    assert read_onnx(path, [-1, 3, 32, 32]).input.shape == (1, 3, 32, 32)


def test_shape_left_open_without_config_is_an_error_with_the_key(write_onnx) -> None:
    path = write_onnx(RELU, ["N", 3, "H", "W"])
    with pytest.raises(ModelError, match=r"open: \['\?', 3, '\?', '\?'\]. Set model.input_shape"):
        read_onnx(path)


def test_config_with_another_number_of_elements_is_an_error_with_both_shapes(write_onnx) -> None:
    path = write_onnx(RELU, [1, 784, 1])
    with pytest.raises(ModelError, match=r"model.input_shape: \[-1, 3, 32, 32\] has 3072.*784, 1"):
        read_onnx(path, [-1, 3, 32, 32])


def test_config_in_another_layout_of_as_many_elements_is_accepted(write_onnx) -> None:
    assert read_onnx(write_onnx(RELU, [1, 784, 1]), [-1, 1, 28, 28]).input.shape == (1, 784, 1)


# Untrusted files.


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent.onnx: no such file, and no absent.onnx.gz"):
        read_onnx(tmp_path / "absent.onnx")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.onnx", b"this is not a network\n" * 50),
        ("empty.onnx", b""),
        ("plain.onnx.gz", b"not gzipped"),
        ("cut.onnx.gz", gzip.compress(b"x" * 10000, mtime=0)[:-9]),
        ("text.onnx.gz", gzip.compress(b"\xff" * 100, mtime=0)),
    ],
)
def test_malformed_file_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_onnx(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_cut_of_a_file_is_refused_or_read(write_onnx) -> None:
    path = write_onnx([helper.make_node("Gemm", ["x", "W"], ["y"])], [1, 4], {"W": np.ones((4, 2))})
    content = path.read_bytes()
    refused = 0
    for length in range(0, len(content), 3):
        path.write_bytes(content[:length])
        try:
            read_onnx(path)
        except ModelError:
            refused += 1
    assert refused > len(content) / 6


def test_decompression_stops_at_the_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("complete_verifier.model.onnx_file.MAX_FILE_BYTES", 1000)
    path = tmp_path / "bomb.onnx.gz"
    path.write_bytes(gzip.compress(b"\0" * 100_000))
    with pytest.raises(ModelError, match="larger than the 1000 bytes"):
        read_onnx(path)


def test_absurd_input_size_is_refused(write_onnx) -> None:
    with pytest.raises(ModelError, match="too many"):
        read_onnx(write_onnx(RELU, [1, 100_000, 100_000]))


@pytest.mark.parametrize("order", [(1, 0), (1,)])
def test_nodes_out_of_order_are_refused_by_name(tmp_path: Path, order: tuple[int, ...]) -> None:
    """onnxruntime sorts them, and onnx2pytorch ends in a KeyError."""
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2]) for name in "xy")
    graph = helper.make_graph([nodes[place] for place in order], "net", [x], [y])
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match='reads "h": expected an input, a constant or'):
        read_onnx(tmp_path / "net.onnx")
