"""Piecewise linear operators by ReLU: Max, Min, Clip, LeakyRelu, Abs.

The real-valued function is the same; its bounds get an optimised slope and a neuron to split on for
every kink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from onnx import NodeProto, helper

_FAR = 64.0
"""From here on a constant is not added to a value and taken off again: digits would be lost."""


class Emitter(Protocol):
    """What these rewrites need of the graph under construction."""

    constants: dict[str, np.ndarray]

    def emit(self, kind: str, inputs: list[str], output: str, **attributes: object) -> None:
        """Append one node."""

    def constant(self, name: str, content: np.ndarray) -> str:
        """Record a constant."""


def _extreme(graph: Emitter, node: NodeProto, kind: str) -> None:
    """Max and Min of any number of operands, one after the other."""
    value, output = node.input[0], node.output[0]
    if len(node.input) == 1:
        graph.emit("Identity", [value], output)
        return
    for position, other in enumerate(node.input[1:]):
        last = position == len(node.input) - 2
        result = output if last else f"{output}/{position}"
        _pair(graph, value, other, result, kind)
        value = result


def _pair(graph: Emitter, left: str, right: str, output: str, kind: str) -> None:
    """``max(a, b) = b + relu(a - b)``; ``min(a, b) = b - relu(b - a)``.

    A constant goes for b, so that a appears once; one that is far away goes for a, so that where it
    does not count the result is b itself (limits are often the largest float there is).
    """
    constant = graph.constants.get(right, graph.constants.get(left))
    far = constant is not None and bool((np.abs(constant) > _FAR).any())
    if (left in graph.constants) != far:
        left, right = right, left
    differs = [left, right] if kind == "Max" else [right, left]
    graph.emit("Sub", differs, f"{output}/over")
    graph.emit("Relu", [f"{output}/over"], f"{output}/excess")
    graph.emit("Add" if kind == "Max" else "Sub", [right, f"{output}/excess"], output)


def _clip(graph: Emitter, node: NodeProto) -> None:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    value, output = node.input[0], node.output[0]
    limits = {}
    for position, side in ((1, "min"), (2, "max")):
        if len(node.input) > position and node.input[position]:
            limits[side] = node.input[position]
        elif side in given:
            content = np.array(given[side], dtype=np.float32)
            limits[side] = graph.constant(f"{output}/{side}", content)
    for side, kind in (("min", "Max"), ("max", "Min")):
        limit = limits.get(side)
        if limit is None or np.isinf(graph.constants.get(limit, np.zeros(()))).any():
            continue
        _pair(graph, value, limit, f"{output}/above" if side == "min" else f"{output}/below", kind)
        value = f"{output}/above" if side == "min" else f"{output}/below"
    graph.emit("Identity", [value], output)


def _leaky_relu(graph: Emitter, node: NodeProto) -> None:
    """``a x + (1 - a) relu(x)``."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    _kink(graph, node, float(given.get("alpha", 0.01)))


def _abs(graph: Emitter, node: NodeProto) -> None:
    """``-x + 2 relu(x)``."""
    _kink(graph, node, -1.0)


def _kink(graph: Emitter, node: NodeProto, slope: float) -> None:
    """x right of zero and ``slope * x`` left of it."""
    value, output = node.input[0], node.output[0]
    left = graph.constant(f"{output}/left", np.array(slope, dtype=np.float32))
    rest = graph.constant(f"{output}/rest", np.array(1 - slope, dtype=np.float32))
    graph.emit("Relu", [value], f"{output}/relu")
    graph.emit("Mul", [value, left], f"{output}/line")
    graph.emit("Mul", [f"{output}/relu", rest], f"{output}/rise")
    graph.emit("Add", [f"{output}/line", f"{output}/rise"], output)


PIECEWISE: dict[str, Callable[[Emitter, NodeProto], None]] = {
    "Max": lambda graph, node: _extreme(graph, node, "Max"),
    "Min": lambda graph, node: _extreme(graph, node, "Min"),
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "Abs": _abs,
}
