"""Rewrite an ONNX graph into fewer kinds of node, meaning the same: first step of `normalise`.

Constants are computed, Identity and inference-mode Dropout vanish, Gemm becomes MatMul and Add with
alpha and beta multiplied into the constants, and piecewise linear operators become ReLU. A Shape
becomes the constant it is for one input, so that whatever is computed from it (targets of Reshape,
ConstantOfShape, Expand) is one too; `normalise` opens the batch again. What then still compares,
chooses or casts does so by values, and becomes arithmetic (`choices`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from complete_verifier.model.choices import CHOICES, Kind, keep_kinds
from complete_verifier.model.composed import COMPOSED, UnsupportedFormError
from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import OnnxInput
from complete_verifier.model.onnx_graph import OnnxGraph
from complete_verifier.model.piecewise import PIECEWISE
from complete_verifier.model.shapes import Shapes, shapes_at_batch_one

OLDEST_OPSET = 7
"""Before it, Add and its kin do not broadcast as numpy does."""

PASS_THROUGH = frozenset({"Identity", "Dropout"})
SPLIT = frozenset({"Gemm"})
NOT_FOLDED = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"}
)
WITH_SUBGRAPHS = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@dataclass
class _Graph:
    """The graph under construction."""

    where: str
    opset: int
    constants: dict[str, np.ndarray]
    shapes: Shapes
    nodes: list[NodeProto] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    choosing: bool = False
    kinds: dict[str, Kind] = field(default_factory=dict)

    def emit(self, kind: str, inputs: list[str], output: str, **attributes: object) -> None:
        """Append one node named after its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))

    def constant(self, name: str, content: np.ndarray) -> str:
        """Record a constant and return its name."""
        self.constants[name] = content
        return name


def simplify(given: OnnxGraph, network_input: OnnxInput, where: str) -> OnnxGraph:
    """Returns the simplified graph; `given` is left alone, and shares its weights with it.

    Raises:
        ModelError: opset older than 7, control flow, or a malformed node.
    """
    folded = _folded(given, network_input, where)
    if any(node.op_type in CHOICES for node in folded.model.graph.node):
        folded = _pass(folded, {}, where, choosing=True)
    return _dependent(folded, network_input, where)


def _folded(given: OnnxGraph, network_input: OnnxInput, where: str) -> OnnxGraph:
    """All that is known for one input is a constant."""
    simplified = _pass(given, {}, where)
    while True:
        # Each Shape that becomes a constant may tell a Reshape's target, and so further shapes.
        left = [node for node in simplified.model.graph.node if node.op_type == "Shape"]
        if not left:
            return simplified
        shapes = shapes_at_batch_one(simplified, network_input, where)
        if all(shapes.get(node.input[0]) is None for node in left):
            return simplified
        simplified = _pass(simplified, shapes, where)


def _pass(given: OnnxGraph, shapes: Shapes, where: str, *, choosing: bool = False) -> OnnxGraph:
    """Rewrite every node once; `choosing` also those whose values are truth values or whole."""
    graph = _Graph(
        where, _opset(given.model, where), dict(given.constants), shapes, choosing=choosing
    )
    for original in given.model.graph.node:
        node = NodeProto()
        node.CopyFrom(original)
        node.input[:] = [graph.aliases.get(name, name) for name in node.input]
        _add_node(graph, node)
    for value in given.model.graph.output:
        if value.name in graph.aliases:
            graph.emit("Identity", [graph.aliases[value.name]], value.name)
    return _finished(given, graph)


def _opset(model: ModelProto, where: str) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions or versions[0] < OLDEST_OPSET:
        got = versions[0] if versions else "none"
        raise ModelError(
            f"{where}: expected ONNX opset {OLDEST_OPSET} or newer, got {got}. Export it again."
        )
    return versions[0]


def _add_node(graph: _Graph, node: NodeProto) -> None:
    if node.op_type in WITH_SUBGRAPHS:
        raise _refusal(graph, node, "control flow is not supported.")
    inputs = [name for name in node.input if name]
    if node.op_type in PASS_THROUGH and inputs:
        graph.aliases[node.output[0]] = inputs[0]
    elif node.op_type not in NOT_FOLDED and all(name in graph.constants for name in inputs):
        _fold(graph, node)
    elif node.op_type == "Shape" and graph.shapes.get(node.input[0]) is not None:
        _fold_shape(graph, node)
    elif node.op_type in PIECEWISE:
        PIECEWISE[node.op_type](graph, node)
    elif node.op_type in COMPOSED or graph.choosing:
        try:
            _compose(graph, node)
        except UnsupportedFormError as error:
            raise _refusal(graph, node, f"{error}, which is not supported.") from None
        except (LookupError, StopIteration, TypeError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise _refusal(graph, node, f"it is malformed: {reason}.") from error
    elif node.op_type in SPLIT:
        _split_gemm(graph, node)
    else:
        graph.nodes.append(node)


def _compose(graph: _Graph, node: NodeProto) -> None:
    if node.op_type in COMPOSED:
        COMPOSED[node.op_type](graph, node)
    elif node.op_type in CHOICES:
        CHOICES[node.op_type](graph, node)
    else:
        keep_kinds(graph, node)
        graph.nodes.append(node)


def _fold(graph: _Graph, node: NodeProto) -> None:
    """Compute a node all of whose inputs are known."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in dict.fromkeys(node.input) if name]
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(graph.constants[name].dtype), None
        )
        for name in names
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([node], "constant", inputs, outputs),
        opset_imports=[helper.make_opsetid("", graph.opset)],
    )
    try:
        results = ReferenceEvaluator(model).run(None, {n: graph.constants[n] for n in names})
    except Exception as error:
        raise _refusal(graph, node, f"its constant value cannot be computed: {error}") from error
    for output, result in zip(outputs, results, strict=True):
        graph.constants[output.name] = np.asarray(result)


def _fold_shape(graph: _Graph, node: NodeProto) -> None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    shape = graph.shapes[node.input[0]]
    part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
    graph.constant(node.output[0], np.array(part, dtype=np.int64))


def _split_gemm(graph: _Graph, node: NodeProto) -> None:
    """Gemm is alpha * A' B' + beta * C, where a prime may mean transposed."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    output = node.output[0]
    left = _factor(graph, node, 0, bool(attributes.get("transA", 0)))
    right = _factor(graph, node, 1, bool(attributes.get("transB", 0)))
    alpha = attributes.get("alpha", 1.0)
    if left in graph.constants:
        left = _scaled(graph, left, alpha, f"{output}/A")
    else:
        right = _scaled(graph, right, alpha, f"{output}/B")
    if len(node.input) < 3 or not node.input[2]:
        graph.emit("MatMul", [left, right], output)
        return
    addend = _scaled(graph, node.input[2], attributes.get("beta", 1.0), f"{output}/C")
    graph.emit("MatMul", [left, right], f"{output}/product")
    graph.emit("Add", [f"{output}/product", addend], output)


def _factor(graph: _Graph, node: NodeProto, index: int, transposed: bool) -> str:
    name = node.input[index]
    if not transposed:
        return name
    result = f"{node.output[0]}/{'AB'[index]}T"
    if name in graph.constants:
        return graph.constant(result, graph.constants[name].T)
    graph.emit("Transpose", [name], result, perm=[1, 0])
    return result


def _scaled(graph: _Graph, name: str, scale: float, result: str) -> str:
    if scale == 1.0:
        return name
    if name in graph.constants:
        content = graph.constants[name]
        return graph.constant(result, (content * scale).astype(content.dtype))
    factor = graph.constant(f"{result}/scale", np.array(scale, dtype=np.float32))
    graph.emit("Mul", [name, factor], result)
    return result


def _finished(given: OnnxGraph, graph: _Graph) -> OnnxGraph:
    model = given.model
    read = {name for node in graph.nodes for name in node.input}
    read.update(value.name for value in model.graph.output)
    constants = {name: content for name, content in graph.constants.items() if name in read}
    inputs = [value for value in model.graph.input if value.name not in graph.constants]
    simplified = GraphProto(
        name="simplified",
        node=graph.nodes,
        input=inputs,
        output=model.graph.output,
    )
    made = helper.make_model(simplified, opset_imports=list(model.opset_import))
    return OnnxGraph(made, constants, given.store)


def _dependent(graph: OnnxGraph, network_input: OnnxInput, where: str) -> OnnxGraph:
    """The graph, with ``0 x + c`` for an output that is a constant c, such as a Shape."""
    (output,) = (value.name for value in graph.model.graph.output)
    content = graph.constants.get(output)
    if content is None:
        return graph
    fixed = content.astype(np.float32).reshape(1, -1)
    if not np.array_equal(fixed.reshape(content.shape).astype(np.float64), content):
        raise ModelError(f"{where}: the output is constant, and no float32 number.")
    made = _Graph(where, _opset(graph.model, where), {}, {})
    parts: dict[str, np.ndarray] = {
        "row": np.array([1, -1], dtype=np.int64),
        "index": np.zeros(fixed.shape[1], dtype=np.int64),
        "zero": np.zeros(1, dtype=np.float32),
        "value": fixed,
    }
    row, index, zero, value = (made.constant(f"{output}/{n}", a) for n, a in parts.items())
    made.emit("Reshape", [network_input.name, row], f"{output}/flat")
    made.emit("Gather", [f"{output}/flat", index], f"{output}/any", axis=1)
    made.emit("Mul", [f"{output}/any", zero], f"{output}/nothing")
    made.emit("Add", [f"{output}/nothing", value], output)
    return _finished(graph, made)


def _refusal(graph: _Graph, node: NodeProto, reason: str) -> ModelError:
    name = node.name or (node.output[0] if node.output else "?")
    return ModelError(f'{graph.where}: node "{name}" ({node.op_type}): {reason}')
