"""A network of several inputs or outputs as one of a single flat input and output.

The property's box, the attack and the bounds speak of one vector: all inputs in the file's order,
each flattened, one after the other; likewise the outputs. onnxruntime gets the file as it is
(`OnnxSession`), so the comparison with it covers what is done here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from complete_verifier.model.onnx_graph import OnnxGraph


@dataclass(frozen=True)
class Part:
    """One of the file's inputs or outputs."""

    name: str
    shape: tuple[int, ...]
    """At batch size 1."""

    @property
    def size(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


def joint_name(graph: GraphProto, wanted: str) -> str:
    """Returns `wanted`, longer where the graph has a value of that name."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
    while wanted in taken:
        wanted += "_"
    return wanted


def joined(
    graph: OnnxGraph, name: str, inputs: Sequence[Part], outputs: Sequence[Part]
) -> OnnxGraph:
    """Returns the graph from one input ``[1, I]`` to one output ``[1, O]``; weights are shared.

    Args:
        name: of the input, and the beginning of what new values are called (`joint_name`).
        inputs, outputs: the file's, in its order; a single one is left as it is.
    """
    model, constants = graph.model, dict(graph.constants)
    nodes = list(model.graph.node)
    own_inputs, own_outputs = list(model.graph.input), list(model.graph.output)
    if len(inputs) > 1:
        nodes = [*_parted(name, inputs, constants), *nodes]
        shape = [1, sum(part.size for part in inputs)]
        read = {part.name for part in inputs}
        own_inputs = [value for value in own_inputs if value.name not in read]
        own_inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    if len(outputs) > 1:
        own_outputs = [helper.make_empty_tensor_value_info(f"{name}/outputs")]
        nodes += _gathered(name, outputs, constants)
    made = GraphProto(name="joined", node=nodes, input=own_inputs, output=own_outputs)
    model = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=made)
    return OnnxGraph(model, constants, graph.store)


def _parted(name: str, inputs: Sequence[Part], constants: dict[str, np.ndarray]) -> list[NodeProto]:
    nodes, first = [], 0
    for number, part in enumerate(inputs):
        own = f"{name}/{number}"
        constants[f"{own}/index"] = np.arange(first, first + part.size, dtype=np.int64)
        constants[f"{own}/shape"] = np.array(part.shape, dtype=np.int64)
        nodes += [
            helper.make_node("Gather", [name, f"{own}/index"], [own], name=own, axis=1),
            helper.make_node("Reshape", [own, f"{own}/shape"], [part.name], name=f"{own}/shaped"),
        ]
        first += part.size
    return nodes


def _gathered(
    name: str, outputs: Sequence[Part], constants: dict[str, np.ndarray]
) -> list[NodeProto]:
    nodes, rows = [], []
    for number, part in enumerate(outputs):
        row = f"{name}/outputs/{number}"
        # The stated size, not -1: an output of another one must not shift those behind it.
        constants[f"{row}/shape"] = np.array([1, part.size], dtype=np.int64)
        nodes.append(helper.make_node("Reshape", [part.name, f"{row}/shape"], [row], name=row))
        rows.append(row)
    whole = f"{name}/outputs"
    return [*nodes, helper.make_node("Concat", rows, [whole], name=whole, axis=1)]
