"""Trace an `nn.Module` into the node lists from which auto_LiRPA builds its graph.

Replaces `auto_LiRPA.parse_graph.parse_module`, whose way into torch's TorchScript exporter no
longer exists. Steps: trace -> ONNX-level graph (opset 12, what auto_LiRPA's operators read) ->
node tuples -> batch size taken out of every Reshape -> nodes that no output needs dropped.

Claim: the graph computes the same function as the module for every batch size, provided that the
module treats its rows independently and keeps the batch in dimension 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

OPSET = 12


class TracedNode(NamedTuple):
    """One value of the traced graph, with the fields that auto_LiRPA's graph builder reads."""

    name: str
    op: str
    inputs: list[str]
    attr: Any
    ori_name: str | None = None
    param: Tensor | None = None
    input_index: int | None = None
    bound_node: Any = None
    output_index: int = 0
    perturbation: Any = None


def parse_module(
    module: nn.Module,
    inputs: Any,
    param_exclude: str | None = ".*AuxLogits.*",
    param_include: str | None = None,
) -> tuple[list[TracedNode], list[TracedNode], list[str], Any]:
    """Returns (operator nodes in topological order, input and parameter nodes, outputs, template).

    Args:
        module: Traced as it is, in its current mode.
        inputs: The example input, a tensor or a tuple of tensors, batch in dimension 0.
        param_exclude: Kept for the signature; parameters are left out exactly when unused.
        param_include: As `param_exclude`.

    The template has the structure of the module's output with None in place of each tensor.
    """
    example = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    graph, output = _onnx_graph(module, example)
    operators = _operator_nodes(graph)
    leaves = _leaf_nodes(graph, module, example)
    outputs = [value.debugName() for value in graph.outputs()]
    operators = _without_batch_size(operators, leaves, graph, batch_size=example[0].shape[0])
    used = _needed_for(outputs, operators)
    rename = _readable_names(graph)
    return (
        [_renamed(node, rename) for node in operators if node.name in used],
        [_renamed(node, rename) for node in leaves if node.name in used],
        [rename.get(name, name) for name in outputs],
        _template(output),
    )


def _onnx_graph(module: nn.Module, example: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """Trace, then run torch's own lowering to ONNX operators; exporter state is put back."""
    from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
    from torch.onnx._internal.torchscript_exporter.utils import (
        _optimize_graph,
        _trigger_symbolic_function_registration,
    )

    # Without it the operators written depend on what else the process has imported.
    _trigger_symbolic_function_registration()
    opset_before = GLOBALS.export_onnx_opset_version
    with warnings.catch_warnings(), _module_names_recorded(module):
        # Tracing warns about every Python number taken from a shape; `_without_batch_size` and
        # the comparison with onnxruntime at load are what makes that safe here.
        warnings.simplefilter("ignore")
        GLOBALS.export_onnx_opset_version = OPSET
        try:
            trace, output = torch.jit._get_trace_graph(module, example)
            fallback = torch._C._onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK
            return _optimize_graph(trace, fallback, params_dict={}), output
        finally:
            GLOBALS.export_onnx_opset_version = opset_before


@contextmanager
def _module_names_recorded(module: nn.Module) -> Iterator[None]:
    """Let the tracer note which submodule each operator came from, for error messages."""
    tracer = torch.jit._trace
    before = tracer._trace_module_map
    tracer._trace_module_map = {
        submodule: f"{torch.typename(submodule)}::{name}"
        for name, submodule in module.named_modules()
    }
    try:
        yield
    finally:
        tracer._trace_module_map = before


def _operator_nodes(graph: Any) -> list[TracedNode]:
    return [
        TracedNode(
            name=output.debugName(),
            op=node.kind(),
            inputs=[value.debugName() for value in node.inputs()],
            attr={key: getattr(node, node.kindOf(key))(key) for key in node.attributeNames()},
            output_index=index,
        )
        for node in graph.nodes()
        for index, output in enumerate(node.outputs())
    ]


def _leaf_nodes(graph: Any, module: nn.Module, example: tuple[Tensor, ...]) -> list[TracedNode]:
    """The graph's inputs: first the module's, then its parameters and buffers."""
    state = torch.jit._unique_state_dict(module, keep_vars=True)
    names = [f"input_{index}" for index in range(len(example))] + list(state)
    params = [None] * len(example) + list(state.values())
    return [
        TracedNode(
            name=value.debugName(),
            op="Parameter",
            inputs=[],
            attr=str(value.type()),
            ori_name=name,
            param=param,
            input_index=index if param is None else None,
            perturbation=getattr(example[index] if param is None else param, "ptb", None),
        )
        for index, (value, name, param) in enumerate(
            zip(graph.inputs(), names, params, strict=True)
        )
    ]


def _without_batch_size(
    operators: Sequence[TracedNode],
    leaves: Sequence[TracedNode],
    graph: Any,
    *,
    batch_size: int,
) -> list[TracedNode]:
    """Let every Reshape of input-dependent data infer dimension 0 instead of the traced size."""
    sizes = {
        output.debugName(): output.type().sizes()
        for node in graph.nodes()
        if node.kind() == "onnx::Reshape"
        for output in node.outputs()
    }
    from_input = {leaf.name for leaf in leaves if leaf.input_index is not None}
    rewritten: list[TracedNode] = []
    for node in operators:
        if node.op != "onnx::Shape" and not from_input.isdisjoint(node.inputs):
            from_input.add(node.name)
        size = sizes.get(node.name)
        if size and node.inputs[0] in from_input and size[0] % batch_size == 0:
            target = torch.tensor([-1, *size[1:]])
            shape = TracedNode(f"{node.name}/shape", "onnx::Constant", [], {"value": target})
            rewritten += [shape, node._replace(inputs=[node.inputs[0], shape.name])]
        else:
            rewritten.append(node)
    return rewritten


def _needed_for(outputs: Sequence[str], operators: Sequence[TracedNode]) -> set[str]:
    """Names of the values on which `outputs` depend, themselves included."""
    needed = set(outputs)
    for node in reversed(operators):
        if node.name in needed:
            needed.update(node.inputs)
    return needed


def _readable_names(graph: Any) -> dict[str, str]:
    """Value name -> submodule path and value name, e.g. "23" -> "layers.0/23"."""
    names: dict[str, str] = {}
    for node in graph.nodes():
        path = node.scopeName().rsplit("::", 1)[-1]
        if path:
            names |= {out.debugName(): f"{path}/{out.debugName()}" for out in node.outputs()}
    return names


def _renamed(node: TracedNode, names: dict[str, str]) -> TracedNode:
    name = names.get(node.name, node.name)
    attr = {**node.attr, "node": name} if isinstance(node.attr, dict) else node.attr
    return node._replace(
        name=name, inputs=[names.get(value, value) for value in node.inputs], attr=attr
    )


def _template(output: Any) -> Any:
    if isinstance(output, (tuple, list)):
        return type(output)(_template(item) for item in output)
    return None
