"""Reductions over axes, counted with or without a batch; greatest and least by ReLU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute


def reduction(writer: GraphWriter, node: NodeProto) -> None:
    """ReduceSum and ReduceMean over the axes of one input, which keep the batch apart."""
    value, output = node.input[0], node.output[0]
    axes = _axes(writer, node)
    if axes is None:
        return
    layout = writer.layout(value)
    if not axes:
        writer.reshape(value, _sample(writer, output), output, writer.stated_layout(output))
        return
    reduced = f"{output}/reduced"
    behind = [axis + 1 for axis in axes]
    writer.write(node.op_type, [value], reduced, layout, axes=behind, keepdims=1)
    writer.reshape(reduced, _sample(writer, output), output, writer.stated_layout(output))


def extreme(writer: GraphWriter, node: NodeProto) -> None:
    """ReduceMax and ReduceMin: halves of an axis against each other, ``max = b + relu(a - b)``."""
    value, output = node.input[0], node.output[0]
    axes = _axes(writer, node)
    if axes is None:
        return
    layout, sample = writer.layout(value), writer.sample_shape(value) or ()
    for axis in axes:
        size, step = sample[axis], 0
        while size > 1:
            half = (size + 1) // 2
            parts = []
            for side, index in (("a", range(half)), ("b", range(size - half, size))):
                name = f"{output}/axis{axis}/{step}/{side}"
                place = writer.new_constant(f"{name}/index", np.array(index, dtype=np.int64))
                writer.write("Gather", [value, place], name, layout, axis=axis + 1)
                parts.append(name)
            left, right = parts
            value = _pair(writer, left, right, layout, greatest=node.op_type == "ReduceMax")
            size, step = half, step + 1
    writer.reshape(value, _sample(writer, output), output, writer.stated_layout(output))


def _pair(writer: GraphWriter, left: str, right: str, layout: Layout, *, greatest: bool) -> str:
    differs = [left, right] if greatest else [right, left]
    writer.write("Sub", differs, f"{left}/over", layout)
    writer.write("Relu", [f"{left}/over"], f"{left}/excess", layout)
    kind = "Add" if greatest else "Sub"
    writer.write(kind, [right, f"{left}/excess"], f"{left}/result", layout)
    return f"{left}/result"


def concat(writer: GraphWriter, node: NodeProto) -> None:
    """Concat; where the file has no batch axis, along the axis behind the batch."""
    data = [name for name in node.input if writer.constant(name) is None]
    layouts = {writer.layout(name) for name in data}
    if layouts != {Layout.ADDED}:
        writer.keep(node, _kept_layout(writer, node, layouts))
        return
    shape = writer.shape(node.output[0])
    if shape is None:
        raise writer.refusal(node, "the shape of its output is not known.")
    axis = int(attribute(node, "axis", 0)) % len(shape) + 1
    operands = []
    for position, name in enumerate(node.input):
        content = writer.constant(name)
        if content is not None:
            name = writer.new_constant(f"{node.output[0]}/{position}", content[None])
        operands.append(name)
    writer.write("Concat", operands, node.output[0], Layout.ADDED, axis=axis)


def _kept_layout(writer: GraphWriter, node: NodeProto, layouts: set[Layout]) -> Layout:
    stays = writer.stated_layout(node.output[0]) is Layout.LEADING
    return Layout.LEADING if layouts == {Layout.LEADING} and stays else Layout.MOVED


def _axes(writer: GraphWriter, node: NodeProto) -> list[int] | None:
    """Axes counted without the batch, ascending; None where the node was written as it is."""
    value = node.input[0]
    shape, layout = writer.shape(value), writer.layout(value)
    if shape is None or layout is Layout.MOVED or writer.shape(node.output[0]) is None:
        writer.keep(node, Layout.MOVED)
        return None
    given = attribute(node, "axes", None)
    if given is None and len(node.input) > 1 and node.input[1]:
        content = writer.constant(node.input[1])
        if content is None:
            raise writer.refusal(node, "which axes it reduces depends on the network's input.")
        given = content.reshape(-1).tolist()
    if given is None or not len(given):
        given = [] if attribute(node, "noop_with_empty_axes", 0) else range(len(shape))
    axes = sorted({int(axis) % len(shape) for axis in given})
    if layout is Layout.ADDED:
        return axes
    # The batch axis of the file has size 1: reducing it changes nothing but the shape.
    return [axis - 1 for axis in axes if axis > 0]


def _sample(writer: GraphWriter, output: str) -> tuple[int, ...]:
    shape = writer.shape(output) or ()
    return shape[1:] if writer.stated_layout(output) is Layout.LEADING else shape


REDUCTIONS: dict[str, Callable[[GraphWriter, NodeProto], None]] = {
    "ReduceSum": reduction,
    "ReduceMean": reduction,
    "ReduceMax": extreme,
    "ReduceMin": extreme,
    "Concat": concat,
}
