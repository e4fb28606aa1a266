"""Operators by simpler ones that mean the same: layer normalisation, GELU, PRelu, hard sigmoids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from onnx import NodeProto, helper

from complete_verifier.model.piecewise import PIECEWISE, Emitter

_AXES_ARE_INPUTS_SINCE = 18


class Composer(Emitter, Protocol):
    """What these rewrites need of the graph under construction."""

    opset: int


class UnsupportedFormError(ValueError):
    """A form of an operator that is not rewritten; the text says which."""


def _given(node: NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _layer_norm(graph: Composer, node: NodeProto) -> None:
    """``(x - mean) / sqrt(mean of squares of that + epsilon) * scale + bias`` over last axes."""
    given, output, value = _given(node), node.output[0], node.input[0]
    axis = int(given.get("axis", -1))
    if axis >= 0:
        raise UnsupportedFormError(f"axis {axis} is not counted from the end")
    if len([name for name in node.output if name]) > 1:
        raise UnsupportedFormError("mean and deviation are outputs")
    axes = list(range(axis, 0))
    _mean(graph, value, f"{output}/mean", axes)
    graph.emit("Sub", [value, f"{output}/mean"], f"{output}/centered")
    graph.emit("Mul", [f"{output}/centered"] * 2, f"{output}/squares")
    _mean(graph, f"{output}/squares", f"{output}/variance", axes)
    epsilon = _number(graph, f"{output}/epsilon", float(given.get("epsilon", 1e-5)))
    graph.emit("Add", [f"{output}/variance", epsilon], f"{output}/positive")
    graph.emit("Sqrt", [f"{output}/positive"], f"{output}/deviation")
    graph.emit("Div", [f"{output}/centered", f"{output}/deviation"], f"{output}/normal")
    has_bias = len(node.input) > 2 and bool(node.input[2])
    scaled = f"{output}/scaled" if has_bias else output
    graph.emit("Mul", [f"{output}/normal", node.input[1]], scaled)
    if has_bias:
        graph.emit("Add", [scaled, node.input[2]], output)


def _mean(graph: Composer, value: str, output: str, axes: list[int]) -> None:
    if graph.opset >= _AXES_ARE_INPUTS_SINCE:
        name = graph.constant(f"{output}/axes", np.array(axes, dtype=np.int64))
        graph.emit("ReduceMean", [value, name], output, keepdims=1)
    else:
        graph.emit("ReduceMean", [value], output, axes=axes, keepdims=1)


def _gelu(graph: Composer, node: NodeProto) -> None:
    """``x / 2 (1 + erf(x / sqrt 2))``, or with tanh where that is asked for."""
    value, output = node.input[0], node.output[0]
    approximate = _given(node).get("approximate", b"none")
    if approximate == b"none":
        root = _number(graph, f"{output}/root", math.sqrt(2))
        graph.emit("Div", [value, root], f"{output}/argument")
        graph.emit("Erf", [f"{output}/argument"], f"{output}/sign")
    elif approximate == b"tanh":
        cube, three = f"{output}/cube", _number(graph, f"{output}/three", 3.0)
        graph.emit("Pow", [value, three], cube)
        share = _number(graph, f"{output}/share", 0.044715)
        graph.emit("Mul", [cube, share], f"{output}/bend")
        graph.emit("Add", [value, f"{output}/bend"], f"{output}/bent")
        steep = _number(graph, f"{output}/steep", math.sqrt(2 / math.pi))
        graph.emit("Mul", [f"{output}/bent", steep], f"{output}/argument")
        graph.emit("Tanh", [f"{output}/argument"], f"{output}/sign")
    else:
        raise UnsupportedFormError(f"approximate is {approximate!r}")
    one = _number(graph, f"{output}/one", 1.0)
    graph.emit("Add", [f"{output}/sign", one], f"{output}/twice")
    graph.emit("Mul", [value, f"{output}/twice"], f"{output}/double")
    half = _number(graph, f"{output}/half", 0.5)
    graph.emit("Mul", [f"{output}/double", half], output)


def _prelu(graph: Composer, node: NodeProto) -> None:
    """``slope x + (1 - slope) relu(x)`` for a constant slope."""
    value, slope, output = node.input[0], node.input[1], node.output[0]
    content = graph.constants.get(slope)
    if content is None:
        raise UnsupportedFormError("its slope depends on the network's input")
    rest = graph.constant(f"{output}/rest", (1 - content).astype(content.dtype))
    graph.emit("Relu", [value], f"{output}/relu")
    graph.emit("Mul", [value, slope], f"{output}/line")
    graph.emit("Mul", [f"{output}/relu", rest], f"{output}/rise")
    graph.emit("Add", [f"{output}/line", f"{output}/rise"], output)


def _hard_sigmoid(graph: Composer, node: NodeProto) -> None:
    """``min(max(alpha x + beta, 0), 1)``."""
    given = _given(node)
    _hard(graph, node, given.get("alpha", 0.2), given.get("beta", 0.5), node.output[0])


def _hard_swish(graph: Composer, node: NodeProto) -> None:
    """``x min(max(x / 6 + 1 / 2, 0), 1)``."""
    output = node.output[0]
    _hard(graph, node, 1 / 6, 0.5, f"{output}/share")
    graph.emit("Mul", [node.input[0], f"{output}/share"], output)


def _hard(graph: Composer, node: NodeProto, alpha: float, beta: float, output: str) -> None:
    steep = _number(graph, f"{output}/alpha", alpha)
    shift = _number(graph, f"{output}/beta", beta)
    graph.emit("Mul", [node.input[0], steep], f"{output}/line")
    graph.emit("Add", [f"{output}/line", shift], f"{output}/shifted")
    limits = [_number(graph, f"{output}/low", 0.0), _number(graph, f"{output}/high", 1.0)]
    clip = helper.make_node("Clip", [f"{output}/shifted", *limits], [output], name=output)
    PIECEWISE["Clip"](graph, clip)


def _number(graph: Composer, name: str, value: float) -> str:
    return graph.constant(name, np.array(value, dtype=np.float32))


COMPOSED: dict[str, Callable[[Composer, NodeProto], None]] = {
    "LayerNormalization": _layer_norm,
    "Gelu": _gelu,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
}
