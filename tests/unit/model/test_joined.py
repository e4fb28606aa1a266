"""Networks of several inputs and outputs, as one vector each.

A failure means that a property about one input or output is answered for another.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from complete_verifier.abcrown import main
from complete_verifier.model.errors import ModelError
from complete_verifier.model.joined import Part
from complete_verifier.model.onnx_file import read_onnx, read_outputs
from complete_verifier.model.onnx_session import OnnxSession
from complete_verifier.replay import replays
from complete_verifier.specification.query_file import Declared
from complete_verifier.standard.command import CommandError, _check_parts

Shapes = dict[str, list[int | str]]


def write(
    path: Path, nodes: list, inputs: Shapes, outputs: Shapes, **constants: np.ndarray
) -> Path:
    kinds = {"whole": TensorProto.INT64}
    graph = helper.make_graph(
        nodes,
        "joint",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [
            helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s)
            for n, s in outputs.items()
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def image_and_numbers(path: Path) -> Path:
    """An image [1, 2, 3, 3] through a convolution, and three numbers, no batch axis; two outputs.

    The outputs are named so that an order by name would swap them.
    """
    generator = np.random.default_rng(5)
    node = helper.make_node
    return write(
        path,
        [
            node("Conv", ["image", "K"], ["c"]),
            node("Flatten", ["c"], ["f"]),
            node("Relu", ["f"], ["r"]),
            node("Mul", ["numbers", "scale"], ["s"]),
            node("Sub", ["r", "s"], ["zz"]),
            node("Relu", ["numbers"], ["aa"]),
        ],
        {"image": ["batch", 2, 3, 3], "numbers": [3]},
        {"zz": [1, 3], "aa": [3]},
        K=generator.normal(size=(3, 2, 3, 3)).astype(np.float32),
        scale=np.array([2, 3, 4], dtype=np.float32),
    )


def test_inputs_and_outputs_follow_the_file_s_order(tmp_path, load_and_compare) -> None:
    path = image_and_numbers(tmp_path / "net.onnx")
    assert load_and_compare(path)[0] < 1e-5
    found = read_onnx(path).input
    assert found.shape == (1, 21) and [part.name for part in found.parts] == ["image", "numbers"]
    row = np.zeros(21, dtype=np.float32)
    row[18:] = [1, -1, 2]
    (outputs,) = OnnxSession(path).run(row[None])
    np.testing.assert_array_equal(outputs, [-2, 3, -8, 1, 0, 2])


def test_two_inputs_of_one_shape_are_not_mixed_up(tmp_path, load_and_compare) -> None:
    nodes = [helper.make_node("Sub", ["joint", "a"], ["y"])]
    path = write(tmp_path / "n.onnx", nodes, {"joint": [1, 2], "a": [1, 2]}, {"y": [1, 2]})
    assert load_and_compare(path)[0] == 0
    assert read_onnx(path).input.name not in ("joint", "a")
    np.testing.assert_array_equal(
        OnnxSession(path).run(np.array([[1, 2, 10, 20]], dtype=np.float32)), [[-9, -18]]
    )


def test_a_wrong_or_open_output_shape_is_refused(tmp_path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    path = write(tmp_path / "n.onnx", nodes, {"x": [1, 2]}, {"y": [1, 2], "z": [1, "n"]})
    with pytest.raises(ModelError, match='output "z", one of 2, leaves its shape open'):
        read_outputs(path)
    with pytest.raises(ModelError, match=r"model.input_shape: \[-1, 5\] has 5 elements"):
        nodes = [helper.make_node("Sub", ["x", "w"], ["y"])]
        path = write(tmp_path / "m.onnx", nodes, {"x": [1, 2], "w": [1, 2]}, {"y": [1, 2]})
        read_onnx(path, [-1, 5])


VERSION_1 = """(declare-const X_0 Real)(declare-const X_1 Real)(declare-const X_2 Real)
(declare-const Y_0 Real)(declare-const Y_1 Real)(declare-const Y_2 Real)
(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= X_1 10.0))(assert (<= X_1 11.0))
(assert (>= X_2 5.0))(assert (<= X_2 6.0))
"""
VERSION_2 = """(vnnlib-version <2.0>)
(declare-network N (declare-input A real [1,1]) (declare-input B real [2])
  (declare-output D real [2]) (declare-output S real [1,1]))
(assert (and (>= A[0,0] 0.0) (<= A[0,0] 1.0) (>= B[0] 10.0) (<= B[0] 11.0)))
(assert (and (>= B[1] 5.0) (<= B[1] 6.0)))
"""


@pytest.fixture
def differences(tmp_path: Path) -> Path:
    """Inputs p [1, 1] and q [2]; outputs d = p - q, in [-11, -9] x [-6, -4], and s = p."""
    node = helper.make_node
    return write(
        tmp_path / "net.onnx",
        [
            node("Sub", ["p", "q"], ["wide"]),
            node("Reshape", ["wide", "two"], ["d"]),
            node("Identity", ["p"], ["s"]),
        ],
        {"p": [1, 1], "q": [2]},
        {"d": [2], "s": [1, 1]},
        two=np.array([2], dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("(>= Y_0 -8.9)", "(>= D[0] -8.9)", "unsat"),
        ("(>= Y_1 -3.9)", "(>= D[1] -3.9)", "unsat"),
        ("(and (<= Y_1 -5.9) (>= Y_2 0.2))", "(and (<= D[1] -5.9) (>= S[0,0] 0.2))", "unsat"),
        ("(and (<= Y_1 -5.7) (>= Y_2 0.2))", "(and (<= D[1] -5.7) (>= S[0,0] 0.2))", "sat"),
        ("(and (>= Y_0 -10.1) (<= Y_2 0.1))", "(and (>= D[0] -10.1) (<= S[0,0] 0.1))", "sat"),
    ],
)
def test_both_versions_of_a_property_mean_the_same(
    first, second, verdict, differences, tmp_path, capsys
) -> None:
    pytest.importorskip("vnnlib")
    old, new = tmp_path / "old.vnnlib", tmp_path / "new.vnnlib"
    old.write_text(f"{VERSION_1}(assert {first})")
    new.write_text(f"{VERSION_2}(assert {second})")
    assert main(["verify", str(new), "--network", f"N={differences}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == verdict
    if verdict == "sat":
        assert [line for line in lines if "[" in line] == [
            "A real [1,1]",
            "B real [2]",
            "D real [2]",
            "S real [1,1]",
        ]
        a, b0, b1, d0, d1, s = (float(line) for line in lines[1:] if "[" not in line)
        assert (np.float32(a) - np.float32(b0), np.float32(a) - np.float32(b1)) == (d0, d1)
        assert s == a
    files = ["--onnx_path", str(differences), "--vnnlib_path", str(old), "--device", "cpu"]
    record, found = tmp_path / "out.json", tmp_path / "cex.txt"
    saved = ["--save_adv_example", "--cex_path", str(found), "--result_json", str(record)]
    main([*files, *saved])
    assert [one["verdict"] for one in json.loads(record.read_text())] == [verdict]
    assert found.exists() == (verdict == "sat")
    assert verdict == "unsat" or replays(differences, old, found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("(declare-input B real [2])", ""), "declares 1 input(s), but"),
        (("B real [2]", "B real [3]"), "declares the input B of shape [3]"),
        (("S real [1,1]", "S real [1,4]"), "declares the output S of shape [1,4]"),
    ],
)
def test_other_inputs_than_the_model_s_are_refused(
    change, message, differences, tmp_path, capsys
) -> None:
    pytest.importorskip("vnnlib")
    text = (VERSION_2 + "(assert (<= S[0,0] 0.0))").replace(*change)
    if "B[0]" in text and "declare-input B" not in text:
        text = "\n".join(line for line in text.splitlines() if "B[1]" not in line)
        text = text.replace(" (>= B[0] 10.0) (<= B[0] 11.0)", "")
    (tmp_path / "q.vnnlib").write_text(text)
    command = ["verify", str(tmp_path / "q.vnnlib"), "--network", f"N={differences}"]
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_a_name_of_the_file_in_another_place_is_refused() -> None:
    stated = (Part("p", (1, 1)), Part("q", (1, 1)))
    named = [Declared("A", "real", (1, 1), "q"), Declared("B", "real", (1, 1), "p", 1)]
    with pytest.raises(CommandError, match="declares the input A as 'q', but in its place"):
        _check_parts(Path("net.onnx"), "input", named, stated)
    _check_parts(Path("net.onnx"), "input", named, stated[::-1])
