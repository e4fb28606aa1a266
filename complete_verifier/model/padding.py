"""Padding: by zeros or a constant as it is, by the value's own elements as a selection of them."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute
from complete_verifier.model.selection import pick_elements

OWN_ELEMENTS = (b"reflect", b"edge", b"wrap")


def pad(writer: GraphWriter, node: NodeProto) -> None:
    """Pad of any mode; only of a value whose batch axis is not padded."""
    if attribute(node, "mode", b"constant") in OWN_ELEMENTS:
        pick_elements(writer, node)
        return
    value = node.input[0]
    layout = writer.layout(value)
    if layout is Layout.ADDED:
        raise writer.refusal(
            node,
            f"its input of shape {list(writer.shape(value) or [])} has no batch axis, which is not "
            "supported for this operator. Export the network with a leading batch axis of 1.",
        )
    stays = writer.stated_layout(node.output[0]) is Layout.LEADING
    writer.keep(node, Layout.LEADING if layout is Layout.LEADING and stays else Layout.MOVED)


def convolution(writer: GraphWriter, node: NodeProto) -> None:
    """Conv, its padding written as a Pad before it where it differs between sides."""
    value, output = node.input[0], node.output[0]
    sample, made = writer.sample_shape(value), writer.shape(output)
    weight = writer.constant(node.input[1])
    if weight is None or writer.layout(value) is Layout.ADDED:
        raise writer.refusal(node, "its weights are no constant, or its input has no batch axis.")
    if sample is None:
        writer.keep(node, Layout.MOVED)
        return
    axes = len(sample) - 1
    kernel = list(attribute(node, "kernel_shape", weight.shape[2:]))
    strides = list(attribute(node, "strides", [1] * axes))
    dilations = list(attribute(node, "dilations", [1] * axes))
    auto = attribute(node, "auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER") and made is not None:
        front, back = [], []
        for size, count, width, stride, step in zip(
            sample[1:], made[2:], kernel, strides, dilations, strict=True
        ):
            total = max(0, (count - 1) * stride + (width - 1) * step + 1 - size)
            small, large = total // 2, total - total // 2
            front.append(small if auto == b"SAME_UPPER" else large)
            back.append(large if auto == b"SAME_UPPER" else small)
    else:
        pads = list(attribute(node, "pads", [0] * (2 * axes)))
        if auto == b"VALID":
            pads = [0] * (2 * axes)
        front, back = pads[:axes], pads[axes:]
    if auto == b"NOTSET" and front == back:
        writer.keep(node, Layout.LEADING)
        return
    if front != back:
        amounts = np.array([0, 0, *front, 0, 0, *back], dtype=np.int64)
        pads_name = writer.new_constant(f"{output}/pads", amounts)
        writer.write("Pad", [value, pads_name], f"{output}/padded", Layout.LEADING)
        value, front = f"{output}/padded", [0] * axes
    writer.write(
        "Conv",
        [value, *node.input[1:]],
        output,
        Layout.LEADING,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=[*front, *front],
        group=int(attribute(node, "group", 1)),
    )
