"""Values of the graph being normalised: constants, shapes, and where each keeps its batch."""

from __future__ import annotations

from collections import Counter
from enum import Enum, auto
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import OnnxInput
from complete_verifier.model.onnx_graph import OnnxGraph
from complete_verifier.model.shapes import shapes_at_batch_one


class Layout(Enum):
    """How a value that has shape s in the file (batch size 1) is laid out for B inputs."""

    LEADING = auto()
    """s = (1, *t) becomes (B, *t)."""
    ADDED = auto()
    """s becomes (B, *s): the file has no batch axis here."""
    MOVED = auto()
    """The batch is elsewhere, or unknown; the file's own nodes are kept as they are."""


class GraphWriter:
    """Looks up values of the file's graph and collects the nodes of the new one."""

    def __init__(self, graph: OnnxGraph, network_input: OnnxInput, where: str) -> None:
        self.where = where
        self._model = model = graph.model
        self._store = graph.store
        self._input = network_input
        self._nodes: list[NodeProto] = []
        self._constants = dict(graph.constants)
        self._shapes = shapes_at_batch_one(graph, network_input, where)
        layout = Layout.LEADING if network_input.has_batch_axis else Layout.ADDED
        self._layouts = {network_input.name: layout}
        self._producers: dict[str, NodeProto] = {}
        self._num_readers = Counter(name for node in model.graph.node for name in node.input)
        self._num_readers.update(value.name for value in model.graph.output)
        self._num_unwritten = Counter(self._num_readers)
        self._read: set[str] = set()

    @property
    def opset(self) -> int:
        """The opset by which the file's nodes are read."""
        return next(o.version for o in self._model.opset_import if o.domain in ("", "ai.onnx"))

    def constant(self, name: str) -> np.ndarray | None:
        """Returns the value's content if it does not depend on the input."""
        return self._constants.get(name)

    def new_constant(self, name: str, content: np.ndarray) -> str:
        """Record a constant; returns its name."""
        self._constants[name] = content
        return name

    def row_major(self, content: np.ndarray) -> np.ndarray:
        """Returns a constant row-major, where the graph's constants lie."""
        return self._store.row_major(content)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the value's shape in the file at batch size 1, None where it is not inferred."""
        return self._shapes.get(name)

    def layout(self, name: str) -> Layout:
        """Returns where a value that depends on the input keeps its batch."""
        return self._layouts[name]

    def stated_layout(self, name: str) -> Layout:
        """Returns the layout that goes with the shape of `name` in the file."""
        shape = self.shape(name)
        if shape is None:
            return Layout.MOVED
        return Layout.LEADING if len(shape) > 1 and shape[0] == 1 else Layout.ADDED

    def sample_shape(self, name: str) -> tuple[int, ...] | None:
        """Returns the shape of one input's share of the value; None if unknown or moved."""
        shape, layout = self.shape(name), self.layout(name)
        if shape is None or layout is Layout.MOVED:
            return None
        return shape[1:] if layout is Layout.LEADING else shape

    def write(
        self, kind: str, inputs: list[str], output: str, layout: Layout, **attributes: Any
    ) -> None:
        """Append one node."""
        node = helper.make_node(kind, inputs, [output], name=output, **attributes)
        self._nodes.append(node)
        self._read.update(inputs)
        self._layouts[output] = layout
        self._producers[output] = node

    def keep(self, node: NodeProto, layout: Layout) -> None:
        """Append the file's own node."""
        self._nodes.append(node)
        self._read.update(node.input)
        self._layouts |= dict.fromkeys(node.output, layout)

    def reshape(self, value: str, sample: tuple[int, ...], output: str, layout: Layout) -> None:
        """Append a Reshape to (B, *sample) for any B."""
        shape = self.new_constant(f"{output}/shape", np.array([-1, *sample], dtype=np.int64))
        self.write("Reshape", [value, shape], output, layout)

    def forget_constants_of(self, node: NodeProto) -> None:
        """Drop constants of a node of the file that is written, unless something reads them."""
        self._num_unwritten.subtract(node.input)
        for name in set(node.input) - self._read:
            if self._num_unwritten[name] <= 0:
                self._constants.pop(name, None)

    def sole_producer(self, name: str) -> NodeProto | None:
        """Returns the written node whose output `name` is, if only one other node reads it."""
        return self._producers.get(name) if self._num_readers[name] == 1 else None

    def rename_output(self, node: NodeProto, output: str) -> None:
        """Let an already written node produce `output` instead."""
        self._layouts[output] = self._layouts[node.output[0]]
        node.output[0] = node.name = output
        self._producers[output] = node

    def refusal(self, node: NodeProto, reason: str) -> ModelError:
        """Returns the error that names the node."""
        return ModelError(
            f'{self.where}: node "{node.name or node.output[0]}" ({node.op_type}): {reason}'
        )

    def finish(self) -> OnnxGraph:
        """Returns the new graph; nodes and constants that the output ignores are dropped.

        Its constants are row-major: their layout decides the bits of products.
        """
        self._complete_gemms()
        outputs = [value.name for value in self._model.graph.output]
        needed, kept = set(outputs), []
        for node in reversed(self._nodes):
            if not needed.isdisjoint(node.output):
                needed.update(node.input)
                kept.append(node)
        graph = helper.make_graph(
            kept[::-1],
            "normalised",
            [helper.make_tensor_value_info(self._input.name, onnx.TensorProto.FLOAT, None)],
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs],
        )
        constants = {}
        for name in list(self._constants):
            content = self._constants.pop(name)
            if name in needed:
                constants[name] = self.row_major(content)
        model = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        return OnnxGraph(model, constants, self._store)

    def _complete_gemms(self) -> None:
        """Give every Gemm a bias; without one, PyTorch's tracer writes a MatMul instead."""
        for node in self._nodes:
            if node.op_type == "Gemm" and len(node.input) == 2:
                weight = self._constants[node.input[1]]
                zeros = np.zeros(weight.shape[0], dtype=weight.dtype)
                node.input.append(self.new_constant(f"{node.output[0]}/zeros", zeros))


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """Returns the value of an attribute of the node, `default` where it has none."""
    for given in node.attribute:
        if given.name == name:
            return helper.get_attribute_value(given)
    return default
