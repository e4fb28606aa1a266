"""Softmax and its logarithm on the last axis."""

from __future__ import annotations

import math

from onnx import NodeProto

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute

PER_AXIS_SINCE = 13
"""Before this opset, Softmax normalised over all axes from `axis` on."""


def softmax(writer: GraphWriter, node: NodeProto) -> None:
    """Write Softmax (LogSoftmax) over the last axis, between Transposes or Reshapes where needed.

    `complete_verifier.model.onnx_torch` reads it so whatever the opset says of other axes.
    """
    value, output = node.input[0], node.output[0]
    shape, layout = writer.shape(value), writer.layout(value)
    if shape is None or layout is Layout.MOVED:
        raise writer.refusal(node, "it is not known where its input keeps the batch.")
    per_axis = writer.opset >= PER_AXIS_SINCE
    axis = int(attribute(node, "axis", -1 if per_axis else 1)) % len(shape)
    if axis == 0 and layout is Layout.LEADING and (per_axis or len(shape) == 1):
        raise writer.refusal(node, "it normalises over the batch.")
    sample = writer.sample_shape(value) or ()
    inner = max(axis - (layout is Layout.LEADING), 0)
    if inner == len(sample) - 1:
        writer.write(node.op_type, [value], output, layout, axis=-1)
    elif per_axis:
        _transposed(writer, node, sample, inner)
    else:
        flat = (*sample[:inner], math.prod(sample[inner:]))
        writer.reshape(value, flat, f"{output}/flat", layout)
        writer.write(node.op_type, [f"{output}/flat"], f"{output}/softmax", layout, axis=-1)
        writer.reshape(f"{output}/softmax", sample, output, layout)


def _transposed(writer: GraphWriter, node: NodeProto, sample: tuple[int, ...], axis: int) -> None:
    value, output = node.input[0], node.output[0]
    layout = writer.layout(value)
    order = list(range(len(sample) + 1))
    order[axis + 1], order[-1] = order[-1], order[axis + 1]
    writer.write("Transpose", [value], f"{output}/last", layout, perm=order)
    writer.write(node.op_type, [f"{output}/last"], f"{output}/softmax", layout, axis=-1)
    writer.write("Transpose", [f"{output}/softmax"], output, layout, perm=order)
