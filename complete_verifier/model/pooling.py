"""Pooling by operators that have exact or optimisable bounds: MaxPool by ReLU, averages by Conv."""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute


def max_pool(writer: GraphWriter, node: NodeProto) -> None:
    """MaxPool as ``max(a, b) = a + relu(b - a)``, first along one axis, then along the next.

    Each maximum then has a lower slope to optimise, and can be split on by branch and bound. A
    window that reaches over the edge holds the edge's own cell, so cells outside count as that one.
    """
    if len([name for name in node.output if name]) > 1:
        raise writer.refusal(node, "its indices are an output.")
    kernel, strides, pads, sizes, counts = _windows(writer, node)
    dilations = list(attribute(node, "dilations", [1] * len(kernel)))
    inside = all(
        (count - 1) * stride + (width - 1) * step - pad < size
        for count, stride, width, step, pad, size in zip(
            counts, strides, kernel, dilations, pads, sizes, strict=True
        )
    )
    if set(dilations) != {1} and (any(pads) or not inside):
        raise writer.refusal(node, "dilated windows reach over the edge.")
    value, output, layout = node.input[0], node.output[0], writer.layout(node.input[0])
    for axis, width in enumerate(kernel):
        starts = np.arange(counts[axis]) * strides[axis] - pads[axis]
        greatest = ""
        for offset in range(width):
            index = np.clip(starts + offset * dilations[axis], 0, sizes[axis] - 1)
            part = f"{output}/axis{axis}/{offset}"
            position = writer.new_constant(f"{part}/index", index.astype(np.int64))
            writer.write("Gather", [value, position], part, layout, axis=axis + 2)
            greatest = _maximum(writer, greatest, part, layout) if greatest else part
        value = greatest
    writer.reshape(value, writer.shape(output)[1:], output, layout)  # type: ignore[index]


def _maximum(writer: GraphWriter, left: str, right: str, layout: Layout) -> str:
    writer.write("Sub", [right, left], f"{right}/over", layout)
    writer.write("Relu", [f"{right}/over"], f"{right}/excess", layout)
    writer.write("Add", [left, f"{right}/excess"], f"{right}/max", layout)
    return f"{right}/max"


def average_pool(writer: GraphWriter, node: NodeProto) -> None:
    """AveragePool as a convolution of each channel, over the number of cells in each window."""
    kernel, strides, pads, sizes, counts = _windows(writer, node)
    if set(attribute(node, "dilations", [1])) != {1}:
        raise writer.refusal(node, "dilated averages are not supported.")
    for count, stride, width, pad, size in zip(counts, strides, kernel, pads, sizes, strict=True):
        if count != (size + 2 * pad - width) // stride + 1:
            raise writer.refusal(
                node, "its padding differs between sides, or ceil_mode adds cells."
            )
    value, output, layout = node.input[0], node.output[0], writer.layout(node.input[0])
    channels = (writer.sample_shape(value) or (1,))[0]
    share = np.full((channels, 1, *kernel), 1 / math.prod(kernel), dtype=np.float32)
    weight = writer.new_constant(f"{output}/weight", share)
    scale = _window_scale(node, kernel, strides, pads, sizes, counts)
    averaged = output if scale is None else f"{output}/padded"
    writer.write(
        "Conv",
        [value, weight],
        averaged,
        layout,
        kernel_shape=kernel,
        strides=strides,
        pads=[*pads, *pads],
        group=channels,
    )
    if scale is not None:
        factor = writer.new_constant(f"{output}/scale", scale)
        writer.write("Mul", [averaged, factor], output, layout)


def _window_scale(
    node: NodeProto,
    kernel: list[int],
    strides: list[int],
    pads: list[int],
    sizes: list[int],
    counts: list[int],
) -> np.ndarray | None:
    """Cells of a whole window over cells inside, per window; None where cells outside count too."""
    if attribute(node, "count_include_pad", 0) or not any(pads):
        return None
    scale = np.ones((), dtype=np.float64)
    for axis, width in enumerate(kernel):
        starts = np.arange(counts[axis]) * strides[axis] - pads[axis]
        inside = np.minimum(starts + width, sizes[axis]) - np.maximum(starts, 0)
        scale = scale[..., None] * (width / inside)
    return scale.astype(np.float32)


def global_average_pool(writer: GraphWriter, node: NodeProto) -> None:
    """GlobalAveragePool as the mean over all axes behind the channels."""
    value, output = node.input[0], node.output[0]
    sample = writer.sample_shape(value)
    if sample is None or writer.layout(value) is not Layout.LEADING:
        raise writer.refusal(node, "its input has no batch axis.")
    axes = list(range(2, len(sample) + 1))
    writer.write("ReduceMean", [value], output, Layout.LEADING, axes=axes, keepdims=1)


def _windows(
    writer: GraphWriter, node: NodeProto
) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Per spatial axis: kernel, stride, padding in front, input size, number of windows."""
    value, shape = node.input[0], writer.shape(node.output[0])
    sample = writer.sample_shape(value)
    if sample is None or shape is None or writer.layout(value) is not Layout.LEADING:
        raise writer.refusal(node, "its input has no batch axis, or an unknown shape.")
    kernel = list(attribute(node, "kernel_shape", []))
    axes = len(kernel)
    strides = list(attribute(node, "strides", [1] * axes))
    sizes, counts = list(sample[1:]), list(shape[2:])
    auto = attribute(node, "auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [
            max(0, (count - 1) * stride + width - size)
            for count, stride, width, size in zip(counts, strides, kernel, sizes, strict=True)
        ]
        pads = [total // 2 if auto == b"SAME_UPPER" else (total + 1) // 2 for total in totals]
    else:
        pads = list(attribute(node, "pads", [0] * (2 * axes)))[:axes]
    return kernel, strides, pads, sizes, counts
