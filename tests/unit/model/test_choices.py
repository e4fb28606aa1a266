"""Comparisons, choices and casts load as what onnxruntime computes, with bounds that hold.

A failure means that a network takes another branch here than in its file.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import NodeProto, TensorProto, helper

from auto_LiRPA_patches.engine.options import AlphaOptions
from auto_LiRPA_patches.errors import UnsupportedOperatorError
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.model.errors import ModelError
from complete_verifier.model.network import load_network
from tests.unit.engine import nets

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def node(kind: str, inputs: str, output: str = "y", **attributes: object) -> NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def compared(kind: str, inputs: str = "x c") -> list[NodeProto]:
    return [node(kind, inputs, "p"), node("Cast", "p", to=FLOAT)]


def joined(kind: str) -> list[NodeProto]:
    return [
        node("Less", "x c", "p"),
        node("Greater", "x d", "q"),
        node(kind, "p q", "r"),
        node("Cast", "r", to=FLOAT),
    ]


CONSTANTS = {"c": [0.3], "d": [-0.2], "b": [[10.0, 20.0, 30.0]]}
CASES: dict[str, list[NodeProto]] = {
    **{kind: compared(kind) for kind in ("Greater", "Less", "Equal")},
    **{kind: compared(kind) for kind in ("GreaterOrEqual", "LessOrEqual")},
    "constant-first": compared("Greater", "c x"),
    "and": joined("And"),
    "or": joined("Or"),
    "xor": joined("Xor"),
    "not": [
        node("Less", "x c", "p"),
        node("Not", "p", "q"),
        node("Cast", "q", to=FLOAT),
    ],
    "where": [node("Greater", "x c", "p"), node("Mul", "x d", "m"), node("Where", "p m x")],
    "where-constants": [node("Greater", "x c", "p"), node("Where", "p b d")],
    "where-one-constant": [node("Greater", "x c", "p"), node("Where", "p x b")],
    "to-truth": [node("Relu", "x", "h"), node("Cast", "h", "p", to=BOOL)]
    + [node("Cast", "p", to=FLOAT)],
    "to-whole": [node("Mul", "x b", "h"), node("Cast", "h", "i", to=INT64)]
    + [node("Cast", "i", to=FLOAT)],
    "whole-sum": [node("Mul", "x b", "h"), node("Cast", "h", "i", to=INT64)]
    + [node("Add", "i n_shape", "j"), node("Cast", "j", to=FLOAT)],
    "same-type": [node("Cast", "x", "h", to=FLOAT), node("Relu", "h")],
    "floor": [node("Mul", "x b", "h"), node("Floor", "h")],
    "ceil": [node("Mul", "x b", "h"), node("Ceil", "h")],
    "sign": [node("Sub", "x c", "h"), node("Sign", "h")],
    "after-a-layer": [node("MatMul", "x W", "h"), node("Greater", "h c", "p")]
    + [node("Where", "p h x")],
}
ALL = {**CONSTANTS, "n_shape": [3], "W": np.random.default_rng(0).normal(size=(3, 3))}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_onnxruntime_computes_and_bounds_hold(write_onnx, name: str) -> None:
    nodes = CASES[name]
    read = {word for one in nodes for word in one.input}
    path = write_onnx(nodes, [1, 3], {n: a for n, a in ALL.items() if n in read})
    graph = load_network(path, OneRankWeights()).graph
    torch.manual_seed(1)
    for radius in (0.0, 0.02, 0.4, 2.0):
        center = torch.rand(4, 3) * 2 - 1
        box = Interval(center - radius, center + radius)
        matrix = nets.signed_outputs(graph)
        values = nets.outputs_of(graph, nets.points_of(box, 100))
        smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
        _, crown = nets.crown(graph, box, matrix)
        alpha = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3)).lower
        image = graph.intervals(box)[graph.output]
        flat = values.flatten(2)
        assert bool((image.lower.flatten(1) <= flat + 1e-4).all())
        assert bool((flat <= image.upper.flatten(1) + 1e-4).all())
        for lower in (crown, alpha):
            assert bool((lower <= smallest + 1e-4).all())


def test_a_decided_choice_is_exact(write_onnx) -> None:
    nodes = CASES["where-one-constant"]
    graph = load_network(
        write_onnx(nodes, [1, 3], {"c": [0.3], "b": CONSTANTS["b"]}), OneRankWeights()
    ).graph
    box = Interval(torch.tensor([[0.4, 0.0, 0.31]]), torch.tensor([[0.5, 0.2, 0.9]]))
    _, crown = nets.crown(graph, box, nets.signed_outputs(graph))
    lower, upper = crown[0::2, 0], -crown[1::2, 0]
    if float(upper[0]) < float(lower[0]):  # rows in two blocks
        lower, upper = crown[:3, 0], -crown[3:, 0]
    torch.testing.assert_close(lower, torch.tensor([0.4, 20.0, 0.31]))
    torch.testing.assert_close(upper, torch.tensor([0.5, 20.0, 0.9]))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Cast", "h", to=FLOAT)], "float16"),
        (
            [node("Cast", "x", "i", to=INT64), node("Div", "i n_shape", "j")]
            + [node("Cast", "j", to=FLOAT)],
            r'"j" \(Div\): an operand is a truth value or a whole number',
        ),
        ([node("Relu", "x", "h"), *compared("Greater", "h x")], "it compares two computed values"),
        (
            [node("Greater", "x c", "p"), node("Where", "p x far")],
            "a choice is infinite or no number",
        ),
    ],
)
def test_what_has_no_rule_is_refused_by_name(write_onnx, nodes, said: str) -> None:
    read = {word for one in nodes for word in one.input}
    known = {"far": [-np.inf], **ALL}
    path = write_onnx(nodes, [1, 3], {n: a for n, a in known.items() if n in read})
    with pytest.raises((ModelError, UnsupportedOperatorError), match=said):
        load_network(path, OneRankWeights())


def test_a_fixed_mask_may_hide_an_infinity(write_onnx, load_and_compare) -> None:
    path = write_onnx([node("Where", "m x far"), node("Softmax", "y", "z")], [1, 3])
    model = onnx.load(path)
    model.graph.output[0].name = "z"
    mask = np.array([[True, False, True]])
    for name, content in (("m", mask), ("far", np.zeros(1, dtype=np.float32))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
    onnx.save(model, path)
    assert load_and_compare(path)[0] < 1e-5
