"""The command line of the VNN-LIB standard: what stands on standard output, and exit codes.

A failure means that a tool which drives solvers by the standard misreads this one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from complete_verifier.abcrown import main
from complete_verifier.standard.capabilities import CAPABILITIES

pytest.importorskip("vnnlib")

QUERY = """(vnnlib-version <2.0>)
(declare-network net (declare-input X {kind} [1,2]) (declare-output Y {kind} [1,1]))
(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))
(assert (>= Y[0,0] {limit}))
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A query y >= limit about y = relu(x0 + x1), with the limit still to be filled in."""
    weight = numpy_helper.from_array(np.ones((2, 1), dtype=np.float32), "W")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "query.vnnlib", tmp_path / "net.onnx"


def test_an_assignment_follows_the_verdict(files, capsys) -> None:
    query, model = files
    query.write_text(QUERY.format(kind="float32", limit="1.5"))
    assert main(["verify", str(query), "--network", f"net={model}", "--timeout", "60.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["sat", "X float32 [1,2]"] and lines[4] == "Y float32 [1,1]"
    x, y = [float(line) for line in lines[2:4]], float(lines[5])
    assert len(lines) == 6 and 0 <= min(x) and max(x) <= 1 and y >= 1.5
    assert y == np.float32(np.float32(x[0]) + np.float32(x[1]))


def test_a_proof_is_one_line(files, capsys) -> None:
    query, model = files
    query.write_text(QUERY.format(kind="real", limit="2.5"))
    assert main(["verify", f"--network=net={model}", str(query)]) == 0
    out, err = capsys.readouterr()
    assert out == "unsat\n" and "unsat" in err


@pytest.mark.parametrize(
    ("asserts", "verdict"),
    [
        ("(>= Y[0,0] 5.0)", "sat"),
        ("(>= Y[0,0] 5000.0)", "unknown"),  # holds at inputs that no window reaches
        ("(and (<= X[0,0] 0.0) (>= X[0,0] 1.0) (>= Y[0,0] 5.0))", "unknown"),
        ("(< Y[0,0] 0.0)", "unsat"),  # no ReLU is negative, wherever its input lies
    ],
)
def test_nothing_but_a_relu_s_sign_is_proven_of_unbounded_inputs(
    asserts, verdict, files, capsys
) -> None:
    query, model = files
    head = "".join(QUERY.format(kind="real", limit=0).splitlines(keepends=True)[:2])
    query.write_text(f"{head}(assert {asserts})")
    assert main(["verify", str(query), "--network", f"net={model}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "expected the path of a VNN-LIB query"),
        (["verify", "{query}"], "expected a model for the network 'net'"),
        (["verify", "{query}", "--network", "other={model}"], "the query declares 'net'"),
        (["verify", "{query}", "--network", "{model}"], "expected NAME=MODEL"),
        (["verify", "{query}", "--network", "net={model}", "--network", "net=b"], "twice"),
        (["verify", "{query}", "--timeout", "-1"], "expected seconds such as 60 or 2.5, got '-1'"),
        (["verify", "{query}", "--timeout", "inf"], "got 'inf'"),
        (["verify", "{query}", "--serialise-assignments", "x"], "is not supported"),
        (["verify", "{query}", "--frobnicate"], "unknown option --frobnicate"),
        (["verify", "{query}", "second"], "expected one query"),
        (["verify", "absent.vnnlib", "--network", "net=x"], "absent.vnnlib"),
        (["verify", "{query}", "--network", "net=absent.onnx"], "absent.onnx: no such file"),
        (["verify", "{wrong}", "--network", "net={model}"], "declares the input X of shape"),
        (["supports"], "expected one of --onnx-opset-versions"),
        (["supports", "--onnx-ops"], "got --onnx-ops"),
        (["--name", "more"], "expected nothing after it"),
    ],
)
def test_what_is_at_fault_is_said_on_standard_error(arguments, message, files, capsys) -> None:
    query, model = files
    query.write_text(QUERY.format(kind="real", limit="2.5"))
    wrong = query.with_name("wrong.vnnlib")
    wrong.write_text(
        "(vnnlib-version <2.0>)(declare-network net (declare-input X real [1,3]) "
        "(declare-output Y real [1,1]))(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) "
        "(>= X[0,1] 0.0) (<= X[0,1] 1.0) (>= X[0,2] 0.0) (<= X[0,2] 1.0) (<= Y[0,0] 1.0)))"
    )
    words = [word.format(query=query, model=model, wrong=wrong) for word in arguments]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


def test_the_name_and_the_version_are_one_line_each(capsys) -> None:
    for flag in ("--name", "--version"):
        assert main([flag]) == 0
        out = capsys.readouterr().out
        assert out.endswith("\n") and out.count("\n") == 1 and out.strip()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_capability_is_answered_in_its_form(capability: str, capsys) -> None:
    assert main(["supports", capability]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line == line.strip() and line for line in lines)
    if capability.endswith("-versions"):
        oldest, newest = (tuple(map(int, line.split("."))) for line in lines)
        assert oldest <= newest
    if capability == "--onnx-operators":
        assert {"Relu", "Conv", "MaxPool", "Softmax", "Gemm", "Clip"} <= set(lines)
        assert all(onnx.defs.has(name) for name in lines)
        assert not {"If", "Loop", "Scan"} & set(lines)
