"""Operators written by simpler ones load as what onnxruntime computes, with bounds that hold.

A failure means that a pooling, a selection or a kink is another function than the file's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from onnx import NodeProto, helper

from auto_LiRPA_patches.engine.options import AlphaOptions
from auto_LiRPA_patches.errors import UnsupportedOperatorError
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.model.errors import ModelError
from complete_verifier.model.network import load_network
from tests.unit.engine import nets


def node(
    kind: str, inputs: Sequence[str] = ("x",), output: str = "y", **attributes: Any
) -> NodeProto:
    return helper.make_node(kind, list(inputs), [output], name=output, **attributes)


# name -> nodes from "x" to "y", input shape, constants, opset
Case = tuple[list[NodeProto], list[int], dict[str, Any], int]
IMAGE = [1, 2, 5, 6]
CASES: dict[str, Case] = {
    "max-pool": ([node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])], IMAGE, {}, 12),
    "max-pool-stride-1": ([node("MaxPool", kernel_shape=[3, 2])], IMAGE, {}, 12),
    "max-pool-padded": (
        [node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        IMAGE,
        {},
        12,
    ),
    "max-pool-ceil": (
        [node("MaxPool", kernel_shape=[2, 2], strides=[2, 4], ceil_mode=1)],
        IMAGE,
        {},
        12,
    ),
    "max-pool-dilated": ([node("MaxPool", kernel_shape=[2, 2], dilations=[2, 3])], IMAGE, {}, 12),
    "max-pool-one-axis": ([node("MaxPool", kernel_shape=[3], strides=[3])], [1, 2, 7], {}, 12),
    "max-pool-same-upper": (
        [node("MaxPool", kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_UPPER")],
        IMAGE,
        {},
        12,
    ),
    "average-pool": ([node("AveragePool", kernel_shape=[2, 3], strides=[2, 3])], IMAGE, {}, 12),
    "average-pool-padded": (
        [node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
        IMAGE,
        {},
        12,
    ),
    "average-pool-counting-pads": (
        [node("AveragePool", kernel_shape=[3, 2], pads=[1, 0, 1, 0], count_include_pad=1)],
        IMAGE,
        {},
        12,
    ),
    "average-pool-one-axis": ([node("AveragePool", kernel_shape=[2])], [1, 3, 5], {}, 12),
    "global-average-pool": ([node("GlobalAveragePool")], IMAGE, {}, 12),
    "upsample": (
        [node("Upsample", ["x", "scales"], mode="nearest")],
        IMAGE,
        {"scales": [1, 1, 2, 3]},
        9,
    ),
    "resize": (
        [
            node(
                "Resize",
                ["x", "", "scales"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        IMAGE,
        {"scales": [1, 1, 2, 1.5]},
        13,
    ),
    "depth-to-space": ([node("DepthToSpace", blocksize=2)], [1, 4, 2, 3], {}, 12),
    "space-to-depth": ([node("SpaceToDepth", blocksize=2)], [1, 2, 4, 2], {}, 12),
    "tile": ([node("Tile", ["x", "repeats_shape"])], [1, 2, 3], {"repeats_shape": [1, 2, 2]}, 12),
    "expand": ([node("Expand", ["x", "to_shape"])], [1, 3, 1], {"to_shape": [1, 3, 4]}, 12),
    "slice-steps": (
        [node("Slice", ["x", "a_shape", "b_shape", "c_shape", "d_shape"])],
        IMAGE,
        {"a_shape": [-1, 0], "b_shape": [-100, 5], "c_shape": [2, 3], "d_shape": [-2, 2]},
        12,
    ),
    "slice-to-a-row": (
        [node("Slice", ["x", "a_shape", "b_shape", "c_shape"])],
        [1, 4],
        {"a_shape": [1], "b_shape": [3], "c_shape": [1]},
        12,
    ),
    "gather-negative": (
        [node("Gather", ["x", "i_shape"], axis=2)],
        IMAGE,
        {"i_shape": [-1, 0]},
        12,
    ),
    "gather-matrix": (
        [node("Gather", ["x", "i_shape"], axis=1)],
        [1, 4, 2],
        {"i_shape": [[0, 3], [-2, 1]]},
        12,
    ),
    "split": (
        [
            helper.make_node("Split", ["x"], ["a", "b"], axis=1, split=[1, 3]),
            node("Mul", ["b", "a"]),
        ],
        [1, 4, 2],
        {},
        12,
    ),
    "max-constant": ([node("Max", ["x", "c"])], [1, 4], {"c": [0.1, -0.2, 0.3, 0.5]}, 12),
    "min-constant": ([node("Min", ["c", "x"])], [1, 4], {"c": [0.1, -0.2, 0.3, 0.5]}, 12),
    "max-of-three": (
        [node("Sin", output="a"), node("Cos", output="b"), node("Max", ["x", "a", "b"])],
        [1, 4],
        {},
        12,
    ),
    "min-of-two": ([node("Sin", output="a"), node("Min", ["x", "a"])], [1, 4], {}, 12),
    "clip": ([node("Clip", ["x", "low", "high"])], [1, 4], {"low": -0.3, "high": 0.4}, 12),
    "clip-one-side": ([node("Clip", ["x", "low"])], [1, 4], {"low": -0.3}, 12),
    "clip-attributes": ([node("Clip", min=0.0, max=0.6)], [1, 4], {}, 9),
    "clip-largest-float": ([node("Clip", min=-0.1, max=3.4028234663852886e38)], [1, 4], {}, 9),
    "clip-constant-first": ([node("Max", ["a", "x"])], [1, 4], {"a": [0.1, -9e9, 99, 0]}, 12),
    "clip-both-vast": ([node("Clip", ["x", "a", "b"])], [1, 4], {"a": -3e38, "b": 3e38}, 12),
    "leaky-relu": ([node("LeakyRelu", alpha=0.2)], [1, 4], {}, 12),
    "abs": ([node("Abs")], [1, 4], {}, 12),
    "softmax-last": ([node("Softmax", axis=2)], [1, 2, 3], {}, 12),
    "softmax-flattening": ([node("Softmax", axis=1)], [1, 2, 3], {}, 12),
    "softmax-inner-axis": ([node("Softmax", axis=1)], [1, 3, 2], {}, 13),
    "softmax-no-batch": ([node("Softmax", axis=0)], [4], {}, 13),
    "concat-constant": (
        [node("Concat", ["c", "x"], axis=1)],
        [1, 3, 2],
        {"c": np.ones((1, 2, 2))},
        12,
    ),
    **{
        f"{kind}-{name}".lower(): ([node(kind, axes=axes, keepdims=keep)], IMAGE, {}, 12)
        for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
        for name, axes, keep in (("one", [2], 1), ("two", [1, -1], 0), ("batch", [0, 3], 0))
    },
    "reducemax-all": ([node("ReduceMax", keepdims=0)], [1, 5], {}, 12),
    "reducesum-input": (
        [node("ReduceSum", ["x", "a_shape"], keepdims=0)],
        IMAGE,
        {"a_shape": [1]},
        13,
    ),
    "reducemean-no-batch": ([node("ReduceMean", axes=[1], keepdims=0)], [2, 3], {}, 12),
    "reducesum-no-batch": ([node("ReduceSum", keepdims=0)], [4], {}, 12),
    "concat-no-batch": (
        [node("Sin", output="a"), node("Concat", ["x", "a", "c"], axis=0)],
        [3, 2],
        {"c": np.ones((1, 2))},
        12,
    ),
    "pad-reflect": (
        [node("Pad", ["x", "p_shape"], mode="reflect")],
        IMAGE,
        {"p_shape": [0, 0, 1, 2, 0, 0, 0, 1]},
        12,
    ),
    "pad-edge": (
        [node("Pad", ["x", "p_shape"], mode="edge")],
        IMAGE,
        {"p_shape": [0, 0, 2, 0, 0, 0, 1, 3]},
        12,
    ),
    "pad-value": (
        [node("Pad", ["x", "p_shape", "c"])],
        IMAGE,
        {"p_shape": [0, 0, 2, 0, 0, 1, 1, 3], "c": 0.7},
        12,
    ),
    "conv-asymmetric": (
        [node("Conv", ["x", "w", "b"], pads=[0, 1, 2, 0], strides=[2, 1])],
        IMAGE,
        {"w": np.linspace(-1, 1, 54).reshape(3, 2, 3, 3), "b": [0.1, 0.2, 0.3]},
        12,
    ),
    **{
        f"conv-{auto}".lower(): (
            [node("Conv", ["x", "w"], auto_pad=auto, strides=[2, 2])],
            IMAGE,
            {"w": np.linspace(-1, 1, 24).reshape(2, 2, 2, 3)},
            12,
        )
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "constant-over-value": (
        [node("Exp", output="e"), node("Div", ["c", "e"])],
        [1, 3],
        {"c": [1.0, -2.0, 0.5]},
        12,
    ),
    "constant-over-value-wider": (
        [node("Exp", output="e"), node("Div", ["c", "e"])],
        [1, 2, 1],
        {"c": [1.0, -2.0, 0.5]},
        12,
    ),
    "value-over-value": ([node("Exp", output="e"), node("Div", ["x", "e"])], [1, 3], {}, 12),
    "erf": ([node("Erf")], [1, 4], {}, 13),
    "gelu": ([node("Gelu")], [1, 4], {}, 20),
    "gelu-tanh": ([node("Gelu", approximate="tanh")], [1, 4], {}, 20),
    "gelu-by-parts": (
        [
            node("Mul", ["x", "r"], "a"),
            node("Erf", ["a"], "e"),
            node("Add", ["one", "e"], "f"),
            node("Mul", ["f", "x"], "g"),
            node("Mul", ["g", "half"]),
        ],
        [1, 4],
        {"r": 0.7071067811865476, "one": 1.0, "half": 0.5},
        13,
    ),
    "log-softmax": ([node("LogSoftmax", axis=-1)], [1, 4], {}, 13),
    "log-softmax-inner-axis": ([node("LogSoftmax", axis=1)], [1, 3, 2], {}, 13),
    "layer-norm": (
        [node("LayerNormalization", ["x", "s", "b"])],
        [1, 3, 4],
        {"s": [1.0, 2.0, 0.5, -1.0], "b": [0.1, 0.0, 0.2, 0.3]},
        17,
    ),
    "layer-norm-two-axes": (
        [node("LayerNormalization", ["x", "s"], axis=-2, epsilon=1e-2)],
        [1, 2, 3],
        {"s": np.ones((2, 3))},
        18,
    ),
    "prelu": ([node("PRelu", ["x", "s"])], [1, 4], {"s": [0.1, -0.5, 2.0, 1.0]}, 12),
    "hard-sigmoid": ([node("HardSigmoid", alpha=0.3, beta=0.4)], [1, 4], {}, 12),
    "hard-swish": ([node("HardSwish")], [1, 4], {}, 14),
    "power-of-minus-one-half": (
        [node("Exp", output="e"), node("Pow", ["e", "p"])],
        [1, 3],
        {"p": -0.5},
        13,
    ),
    "shape-of-the-input": (
        [
            node("Shape", output="s"),
            node("Gather", ["s", "i_shape"], "n", axis=0),
            node("Unsqueeze", ["n"], "n1", axes=[0]),
            node("Concat", ["n1", "t_shape"], "to", axis=0),
            node("Reshape", ["x", "to"]),
        ],
        [1, 2, 6],
        {"i_shape": np.zeros(()), "t_shape": [-1, 3]},
        12,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lowered_operator_is_onnxruntimes_and_bounded(write_onnx, name: str) -> None:
    nodes, shape, constants, opset = CASES[name]
    torch.manual_seed(140)
    # Loading compares with onnxruntime, in batches.
    network = load_network(write_onnx(nodes, shape, constants, opset=opset), OneRankWeights())
    graph = network.graph
    box = nets.boxes(network.input_shape, 2, 0.5, torch.float32)
    points = nets.points_of(box, 40)
    values = nets.outputs_of(graph, points)
    image = graph.intervals(box)[graph.output]
    assert bool((image.lower.flatten(1) <= values.amin(0) + 1e-5).all())
    assert bool((image.upper.flatten(1) >= values.amax(0) - 1e-5).all())
    matrix = torch.randn(4, network.num_outputs)
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    _, lower = nets.crown(graph, box, matrix)
    assert bool((lower <= smallest + 1e-5).all())
    assert bool(torch.isfinite(lower).all())
    best = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2)).lower
    assert bool((lower - 1e-5 <= best).all())
    assert bool((best <= smallest + 1e-5).all())


@pytest.mark.parametrize("name", ["gelu", "gelu-by-parts"])
def test_gelu_is_bounded_as_one_function(write_onnx, name: str) -> None:
    """Its parts would multiply x by a function of x, and lose what they have in common."""
    nodes, shape, constants, opset = CASES[name]
    network = load_network(write_onnx(nodes, shape, constants, opset=opset), OneRankWeights())
    kinds = [type(each.operator).__name__ for each in network.graph.nodes]
    assert kinds.count("Gelu") == 1
    assert not {"Erf", "Product"} & set(kinds)


@pytest.mark.parametrize(
    ("nodes", "shape", "constants", "said"),
    [
        (
            [node("Resize", ["x", "", "scales"], mode="linear")],
            IMAGE,
            {"scales": [1, 1, 2, 2]},
            "only nearest",
        ),
        ([node("Softmax", axis=0)], [1, 4], {}, "over the batch"),
        (
            [node("LayerNormalization", ["x", "s"], axis=1)],
            [1, 4],
            {"s": [1.0, 1.0, 1.0, 1.0]},
            "axis 1 is not counted from the end",
        ),
        (
            [node("Pad", ["x", "p_shape"])],
            [3, 3],
            {"p_shape": [0, 1, 0, 0]},
            "has no batch axis",
        ),
        (
            [node("Cast", output="i", to=7), node("Gather", ["x", "i"], axis=1)],
            [1, 4],
            {},
            "depends on the network's input",
        ),
        (
            [node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1])],
            IMAGE,
            {},
            "dilated windows",
        ),
    ],
)
def test_a_form_without_a_rule_is_refused_by_name(
    write_onnx, nodes: list[NodeProto], shape: list[int], constants: dict[str, Any], said: str
) -> None:
    with pytest.raises((ModelError, UnsupportedOperatorError), match=said):
        load_network(write_onnx(nodes, shape, constants, opset=13), OneRankWeights())
