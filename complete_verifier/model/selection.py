"""Operators that only pick elements, written as Gather: Slice, Split, Gather, Resize (nearest), ...

The node is run once on the numbers of its input's elements; what comes out says which element goes
where. So every form an operator has - steps, negative indices, several axes, coordinate modes of
Resize - means what the ONNX reference says, and the rest of the program sees one operator.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, helper

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute

LARGEST_EXACT = 2**24
"""float32 counts no further, and Resize is defined on floats."""


def pick_elements(writer: GraphWriter, node: NodeProto) -> None:
    """Write each output as elements of the first input; the other inputs are constants."""
    value = node.input[0]
    shape, sample = writer.shape(value), writer.sample_shape(value)
    if shape is None or sample is None:
        writer.keep(node, Layout.MOVED)
        return
    if any(name and writer.constant(name) is None for name in node.input[1:]):
        raise writer.refusal(node, "which elements it picks depends on the network's input.")
    if math.prod(shape) >= LARGEST_EXACT:
        raise writer.refusal(node, f"its input has {math.prod(shape)} elements, too many.")
    for output, picked in zip(node.output, _positions(writer, node, shape), strict=True):
        if output:
            _write_picked(writer, value, sample, picked, output)


def _positions(writer: GraphWriter, node: NodeProto, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Per output of the node the flat positions in its input."""
    from onnx.reference import ReferenceEvaluator

    mode = attribute(node, "mode", b"nearest")
    if node.op_type in ("Resize", "Upsample") and mode != b"nearest":
        raise writer.refusal(node, f"mode {mode.decode()} is not supported, only nearest.")
    numbers = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    feeds = {node.input[0]: numbers}
    feeds |= {name: np.asarray(writer.constant(name)) for name in node.input[1:] if name}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "positions", inputs, outputs)
    opsets = [helper.make_opsetid("", writer.opset)]
    try:
        results = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets)).run(
            None, feeds
        )
    except Exception as error:
        raise writer.refusal(node, f"its elements cannot be followed: {error}") from error
    found = [np.asarray(result) for result in results]
    if any(np.any(array != np.round(array)) for array in found):
        raise writer.refusal(node, "it mixes elements, which is not supported.")
    return [array.astype(np.int64) for array in found]


def _write_picked(
    writer: GraphWriter, value: str, sample: tuple[int, ...], picked: np.ndarray, output: str
) -> None:
    layout = Layout.LEADING if picked.ndim > 1 and picked.shape[0] == 1 else Layout.ADDED
    target = picked.shape[1:] if layout is Layout.LEADING else picked.shape
    positions = picked.reshape(target)
    by_axis = _by_axis(positions, sample)
    if by_axis is None:
        flat, chosen = f"{output}/flat", f"{output}/picked"
        writer.reshape(value, (math.prod(sample),), flat, Layout.LEADING)
        _gather(writer, flat, 1, positions.reshape(-1), chosen, Layout.LEADING)
        writer.reshape(chosen, target, output, layout)
        return
    for axis, index in enumerate(by_axis):
        if not np.array_equal(index, np.arange(sample[axis])):
            chosen = f"{output}/axis{axis}"
            _gather(writer, value, axis + 1, index, chosen, layout)
            value = chosen
    writer.reshape(value, target, output, layout)


def _by_axis(positions: np.ndarray, sample: tuple[int, ...]) -> list[np.ndarray] | None:
    """One index per axis, if the picked elements are those of every combination of them."""
    if positions.ndim != len(sample) or positions.size == 0:
        return None
    coordinates = np.unravel_index(positions, sample) if sample else ()
    indices = []
    for axis, coordinate in enumerate(coordinates):
        line = tuple(slice(None) if other == axis else 0 for other in range(len(sample)))
        index = coordinate[line]
        spread = index.reshape([-1 if other == axis else 1 for other in range(len(sample))])
        if not np.array_equal(coordinate, np.broadcast_to(spread, positions.shape)):
            return None
        indices.append(index)
    return indices


def _gather(
    writer: GraphWriter, value: str, axis: int, index: np.ndarray, output: str, layout: Layout
) -> None:
    name = writer.new_constant(f"{output}/index", np.asarray(index, dtype=np.int64))
    writer.write("Gather", [value, name], output, layout, axis=axis)
