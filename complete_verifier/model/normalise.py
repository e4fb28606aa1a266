"""Rewrite a network so that it means the same for one input and runs on any number of inputs.

ONNX files often fix the batch size at 1 in Reshape, have no batch axis at all, or multiply a
constant matrix from the left; onnx2pytorch takes such files literally or gets them wrong. The
rewritten graph keeps the batch in dimension 0 throughout, multiplies matrices only as
Gemm(x, W, b) with transB, and leaves constants without a batch axis.

Each value is a function of one input in the file (batch size 1); `Layout` says how B of them are
stacked in the rewritten graph. Whatever cannot be rewritten is kept, and if that is wrong for a
batch, the comparison with onnxruntime refuses the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from onnx import NodeProto

from complete_verifier.model.graph_writer import GraphWriter, Layout, attribute
from complete_verifier.model.normalisers import softmax
from complete_verifier.model.onnx_file import OnnxFile
from complete_verifier.model.onnx_graph import OnnxGraph
from complete_verifier.model.padding import convolution, pad
from complete_verifier.model.pooling import average_pool, global_average_pool, max_pool
from complete_verifier.model.reductions import REDUCTIONS
from complete_verifier.model.selection import pick_elements
from complete_verifier.model.simplify import simplify

ELEMENTWISE_UNARY = frozenset(
    "Abs Cast Ceil Celu Clip Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu "
    "Log Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Tan Tanh "
    "ThresholdedRelu".split()
)

PICKS_ELEMENTS = frozenset(
    "DepthToSpace Expand Gather Resize Slice SpaceToDepth Split Tile Upsample".split()
)


def normalise(file: OnnxFile) -> OnnxGraph:
    """Returns the rewritten graph, and leaves none of the weights behind in `file`.

    Raises:
        ModelError: malformed, or of a form that cannot be run on batches; names the node.
    """
    where = str(file.path)
    graph = simplify(file.graph, file.input, where)
    file.graph.constants.clear()
    writer = GraphWriter(graph, file.input, where)
    graph.constants.clear()
    for node in graph.model.graph.node:
        WRITERS.get(node.op_type, _keep)(writer, node)
        writer.forget_constants_of(node)
    return writer.finish()


def _keep(writer: GraphWriter, node: NodeProto) -> None:
    """Any other operator, kept as it is where the batch stays in dimension 0."""
    data = [name for name in node.input if name and writer.constant(name) is None]
    layouts = {writer.layout(name) for name in data}
    if Layout.MOVED in layouts or node.op_type == "Shape":
        layout = Layout.MOVED
    elif layouts == {Layout.LEADING}:
        stays = writer.stated_layout(node.output[0]) is Layout.LEADING
        layout = Layout.LEADING if stays else Layout.MOVED
    elif node.op_type in ELEMENTWISE_UNARY:
        layout = Layout.ADDED
    else:
        raise writer.refusal(
            node,
            f"its input of shape {list(writer.shape(data[0]) or [])} has no batch axis, which is "
            "not supported for this operator. Export the network with a leading batch axis of 1.",
        )
    writer.keep(node, layout)


def _rearrange(writer: GraphWriter, node: NodeProto) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: one Reshape to the inferred shape, batch left open."""
    value, output = node.input[0], node.output[0]
    shape = writer.shape(output)
    if shape is None or writer.sample_shape(value) is None:
        writer.keep(node, Layout.MOVED)
        return
    layout = writer.stated_layout(output)
    writer.reshape(value, shape[1:] if layout is Layout.LEADING else shape, output, layout)


def _transpose(writer: GraphWriter, node: NodeProto) -> None:
    value, output = node.input[0], node.output[0]
    shape, layout = writer.shape(value), writer.layout(value)
    if shape is None or layout is Layout.MOVED:
        writer.keep(node, Layout.MOVED)
        return
    order = list(attribute(node, "perm", list(range(len(shape)))[::-1]))
    if (moving := [axis for axis in order if shape[axis] != 1]) == sorted(moving):
        _rearrange(writer, node)
    elif layout is Layout.ADDED:
        shifted = [0, *(axis + 1 for axis in order)]
        writer.write("Transpose", [value], output, Layout.ADDED, perm=shifted)
    else:
        writer.keep(node, Layout.LEADING if order[0] == 0 else Layout.MOVED)


def _elementwise(writer: GraphWriter, node: NodeProto) -> None:
    """Binary operators: bring both operands to the same number of dimensions without batch."""
    data = [name for name in node.input if writer.constant(name) is None]
    samples = [writer.sample_shape(name) for name in data]
    output = node.output[0]
    if None in samples or writer.shape(output) is None or len(node.input) != 2:
        writer.keep(node, Layout.MOVED)
        return
    if node.op_type == "Add" and _added_as_bias(writer, node, data):
        return
    operands = [_without_batch(writer, name, f"{output}/{i}") for i, name in enumerate(node.input)]
    rank = max(len(shape) for _, shape in operands)
    aligned = [_aligned(writer, name, shape, rank, output) for name, shape in operands]
    result = np.broadcast_shapes(*(shape for _, shape in operands))
    layout = writer.stated_layout(output)
    stated = writer.shape(output) or ()
    sample = stated[1:] if layout is Layout.LEADING else stated
    if result == sample:
        writer.write(node.op_type, aligned, output, layout)
    else:
        writer.write(node.op_type, aligned, f"{output}/unshaped", layout)
        writer.reshape(f"{output}/unshaped", sample, output, layout)


def _without_batch(writer: GraphWriter, name: str, stripped: str) -> tuple[str, tuple[int, ...]]:
    """Returns an operand and its shape without batch; a constant loses its leading ones."""
    content = writer.constant(name)
    if content is None:
        return name, writer.sample_shape(name) or ()
    while content.ndim and content.shape[0] == 1:
        content = content[0]
    return writer.new_constant(stripped, content), content.shape


def _aligned(writer: GraphWriter, name: str, shape: tuple[int, ...], rank: int, output: str) -> str:
    """Give an operand with a batch `rank` dimensions behind it; constants broadcast as they are."""
    if writer.constant(name) is not None or len(shape) == rank:
        return name
    widened = f"{output}/{name}"
    writer.reshape(name, (1,) * (rank - len(shape)) + shape, widened, Layout.ADDED)
    return widened


def _added_as_bias(writer: GraphWriter, node: NodeProto, data: list[str]) -> bool:
    """Put a constant that is added to x Wᵀ into the Gemm, if nothing else reads the product."""
    gemm = writer.sole_producer(data[0])
    if len(data) != 1 or gemm is None or gemm.op_type != "Gemm" or len(gemm.input) != 2:
        return False
    output = node.output[0]
    addend = node.input[1] if node.input[0] == data[0] else node.input[0]
    bias, shape = _without_batch(writer, addend, f"{output}/bias")
    weight = writer.constant(gemm.input[1])
    if weight is None or shape not in ((), weight.shape[:1]):
        return False
    if writer.shape(output) != writer.shape(data[0]):
        return False
    content = np.broadcast_to(np.asarray(writer.constant(bias)), weight.shape[:1])
    gemm.input.append(writer.new_constant(bias, np.array(content)))
    writer.rename_output(gemm, output)
    return True


def _matmul(writer: GraphWriter, node: NodeProto) -> None:
    """A product with a constant matrix on either side, or of two values."""
    left, right = node.input
    if writer.constant(left) is None and writer.constant(right) is None:
        _keep(writer, node)
        return
    matrix_is_left = writer.constant(left) is not None
    matrix, value = (left, right) if matrix_is_left else (right, left)
    content = np.asarray(writer.constant(matrix))
    if content.ndim != 2:
        raise writer.refusal(
            node,
            f"the constant factor has shape {list(content.shape)}; only a matrix is supported.",
        )
    if writer.sample_shape(value) is None or writer.shape(node.output[0]) is None:
        if matrix_is_left:
            raise writer.refusal(node, "it is not known where its input keeps the batch.")
        writer.keep(node, Layout.MOVED)
        return
    if matrix_is_left:
        _matrix_times_value(writer, node, content, value)
    else:
        _value_times_matrix(writer, node, value, content)


def _value_times_matrix(
    writer: GraphWriter, node: NodeProto, value: str, matrix: np.ndarray
) -> None:
    """x [.., K] times [K, N]; a Gemm where each input has a single row."""
    output = node.output[0]
    sample = writer.sample_shape(value) or ()
    rows = math.prod(sample[:-1])
    layout = writer.stated_layout(output)
    if rows != 1:
        factor = writer.new_constant(f"{output}/matrix", matrix)
        writer.write("MatMul", [value, factor], output, layout)
        return
    _gemm(writer, value, matrix.T, output)


def _matrix_times_value(
    writer: GraphWriter, node: NodeProto, matrix: np.ndarray, value: str
) -> None:
    """[M, K] times x [K] or [K, 1]: a Gemm; times a wider x: (xᵀ Wᵀ)ᵀ."""
    output, shape = node.output[0], writer.shape(value) or ()
    num_columns = math.prod(shape[-1:]) if len(shape) > 1 else 1
    if num_columns == 1 and math.prod(shape) == matrix.shape[1]:
        _gemm(writer, value, matrix, output)
        return
    if len(shape) == 2 and writer.layout(value) is Layout.LEADING:
        # One row [1, N] in the file: the matrix has one column, and B rows are [B, 1, N].
        writer.reshape(value, shape, f"{output}/row", Layout.ADDED)
        value = f"{output}/row"
    rank = len(shape) + (writer.layout(value) is Layout.ADDED)
    order = [*range(rank - 2), rank - 1, rank - 2]
    factor = writer.new_constant(f"{output}/matrix", matrix.T)
    layout = writer.layout(value)
    writer.write("Transpose", [value], f"{output}/xT", layout, perm=order)
    writer.write("MatMul", [f"{output}/xT", factor], f"{output}/yT", layout)
    writer.write("Transpose", [f"{output}/yT"], output, layout, perm=order)


def _gemm(writer: GraphWriter, value: str, weight: np.ndarray, output: str) -> None:
    """x Wᵀ for one row [K] of each input, in the shape that the file states for it."""
    if len(writer.sample_shape(value) or ()) != 1:
        writer.reshape(value, weight.shape[1:], f"{output}/flat", Layout.LEADING)
        value = f"{output}/flat"
    factor = writer.new_constant(f"{output}/weight", writer.row_major(weight))
    layout, stated = writer.stated_layout(output), writer.shape(output) or ()
    sample = stated[1:] if layout is Layout.LEADING else stated
    product = output if sample == weight.shape[:1] else f"{output}/row"
    writer.write("Gemm", [value, factor], product, layout, transB=1)
    if product != output:
        writer.reshape(product, sample, output, layout)


WRITERS: Mapping[str, Callable[[GraphWriter, NodeProto], None]] = {
    "MatMul": _matmul,
    "Transpose": _transpose,
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "Conv": convolution,
    "Pad": pad,
    **REDUCTIONS,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    **dict.fromkeys(PICKS_ELEMENTS, pick_elements),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _rearrange),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Greater"), _elementwise),
}
