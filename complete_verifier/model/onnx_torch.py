"""Convert a normalised ONNX graph to a PyTorch module with onnx2pytorch.

onnx2pytorch copies every weight three times on its way. It gets stand-ins of one number per group,
and the layers get the graph's own arrays afterwards.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, NodeProto
from torch import Tensor, nn

from auto_LiRPA_patches.compat.stand_ins import modules_replaced, stand_in
from complete_verifier.model.errors import ModelError
from complete_verifier.model.graph_writer import attribute
from complete_verifier.model.onnx_graph import OnnxGraph, tensors

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators that onnx2pytorch makes a layer of when their second input is a constant."""


def to_torch(graph: OnnxGraph, example: Tensor, where: str) -> nn.Module:
    """Returns the module in eval mode, no parameter of which requires a gradient.

    Weights of layers share memory with the graph's arrays and must not be written to.

    Args:
        graph: As `normalise` returns it; onnx2pytorch may change it, so pass it on nowhere else.
        example: [1, *input_shape], on which the module is run once.
        where: The file, for the error.

    Raises:
        ModelError: onnx2pytorch does not know an operator or a form of it.
    """
    with warnings.catch_warnings():
        # onnx2pytorch warns about read-only arrays and about operators that it guesses; a wrong
        # guess is found by the comparison with onnxruntime.
        warnings.simplefilter("ignore")
        with _no_torchvision():
            from onnx2pytorch import ConvertModel
        weights = _weights_of_layers(graph)
        model = _with_stand_ins(graph, weights)
        try:
            module = ConvertModel(model, experimental=True)
            _put_weights(module, model, {name: graph.constants[name] for name in weights})
        except Exception as error:
            raise ModelError(
                f"{where}: onnx2pytorch cannot convert the network: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        _replace_modules(module, model, graph.constants)
        module = module.eval().requires_grad_(False)
        try:
            module(example)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{where}: {_failed_node(error.__traceback__)}: the converted network does not run "
                f"on an input of shape {list(example.shape)}: {' '.join(str(error).split())}"
            ) from error
    return module


def _failed_node(traceback: TracebackType | None) -> str:
    """Names the node that onnx2pytorch was at; its loop over the nodes calls it `node`."""
    while traceback is not None:
        node = traceback.tb_frame.f_locals.get("node")
        if isinstance(node, NodeProto):
            return f'node "{node.name or node.output[0]}" ({node.op_type})'
        traceback = traceback.tb_next
    return "conversion"


class FixedReshape(nn.Module):
    """Reshape to a shape known at conversion."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, value: Tensor, _shape: Tensor | None = None) -> Tensor:
        """Returns `value` in the fixed shape; the second operand repeats that shape."""
        return value.reshape(self.shape)


class FixedGather(nn.Module):
    """Pick positions along one axis, known at conversion."""

    index: Tensor

    def __init__(self, axis: int, index: Tensor) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("index", index, persistent=False)

    def forward(self, value: Tensor, _index: Tensor | None = None) -> Tensor:
        """Returns the picked elements; the second operand repeats the index."""
        return value.index_select(self.axis, self.index)


class Exceeds(nn.Module):
    """Whether one value is greater than the other."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns truth values."""
        return torch.gt(left, right)


class FixedPad(nn.Module):
    """Pad by a number, amounts known at conversion."""

    def __init__(self, amounts: np.ndarray, filled: float) -> None:
        super().__init__()
        half = len(amounts) // 2
        pairs = reversed(list(zip(amounts[:half], amounts[half:], strict=True)))
        self.amounts = [int(amount) for pair in pairs for amount in pair]
        self.filled = filled

    def forward(self, value: Tensor, *_amounts: Tensor) -> Tensor:
        """Returns the padded value; the other operands repeat amounts and filling."""
        return nn.functional.pad(value, self.amounts, value=self.filled)


class FixedReduction(nn.Module):
    """Sum or mean over axes, which stay with size 1 where `keep`."""

    def __init__(self, axes: list[int], *, mean: bool, keep: bool) -> None:
        super().__init__()
        self.axes = axes
        self.mean = mean
        self.keep = keep

    def forward(self, value: Tensor) -> Tensor:
        """Returns the reduced value."""
        reduce = torch.mean if self.mean else torch.sum
        return reduce(value, self.axes, keepdim=self.keep)


def _replace_modules(module: Any, model: ModelProto, constants: Mapping[str, np.ndarray]) -> None:
    """Put plain modules where the tracer would record a dozen operators on shapes and indices.

    onnx2pytorch reads a Reshape's target and a Gather's index from a buffer on every call, and
    flattens around a Softmax's axis as old opsets say; `normalise` writes it for the last axis.
    """
    for node in model.graph.node:
        known = len(node.input) > 1 and node.input[1] in constants
        plain: nn.Module
        if node.op_type == "Reshape" and known:
            shape = tuple(int(size) for size in constants[node.input[1]])
            plain = FixedReshape(shape)
        elif node.op_type == "Gather" and known:
            index = torch.tensor(constants[node.input[1]].astype("int64"))
            plain = FixedGather(int(attribute(node, "axis", 0)), index)
        elif node.op_type == "Greater":
            plain = Exceeds()
        elif node.op_type in ("Softmax", "LogSoftmax"):
            plain = nn.Softmax(dim=-1) if node.op_type == "Softmax" else nn.LogSoftmax(dim=-1)
        elif node.op_type == "Pad" and known:
            filled = constants.get(node.input[2]) if len(node.input) > 2 else None
            plain = FixedPad(constants[node.input[1]], 0.0 if filled is None else float(filled))
        elif node.op_type in ("ReduceSum", "ReduceMean") and attribute(node, "axes", []):
            axes = [int(axis) for axis in attribute(node, "axes", [])]
            keep = bool(attribute(node, "keepdims", 1))
            plain = FixedReduction(axes, mean=node.op_type == "ReduceMean", keep=keep)
        else:
            continue
        setattr(module, module.mapping[node.output[0]], plain)


def _weights_of_layers(graph: OnnxGraph) -> dict[str, int]:
    """Constants that nothing but layers read, as their weight, with the groups of the layer."""
    groups: dict[str, int] = {}
    read_otherwise: set[str] = set()
    for node in graph.model.graph.node:
        of_node = int(attribute(node, "group", 1))
        for position, name in enumerate(node.input):
            content = graph.constants.get(name)
            if content is None:
                continue
            is_weight = node.op_type in _WEIGHTED and position == 1 and content.ndim > 1
            if not is_weight or groups.setdefault(name, of_node) != of_node:
                read_otherwise.add(name)
    return {name: count for name, count in groups.items() if name not in read_otherwise}


def _with_stand_ins(graph: OnnxGraph, weights: Mapping[str, int]) -> ModelProto:
    """The model with its constants, but of each weight the kernel of one channel per group."""
    small = dict(graph.constants)
    for name, groups in weights.items():
        content = graph.constants[name]
        kernel = content.shape[2:]
        small[name] = np.zeros((groups if kernel else 1, 1, *kernel), dtype=content.dtype)
    model = ModelProto()
    model.CopyFrom(graph.model)
    model.graph.initializer.extend(tensors(small))
    return model


def _put_weights(module: Any, model: ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Let each layer hold its real weight, without a copy."""
    for node in model.graph.node:
        if node.op_type not in _WEIGHTED or node.input[1] not in weights:
            continue
        content = weights[node.input[1]]
        # Strides of axes of size 1 as torch writes them: they too may decide a product's bits.
        weight = torch.from_numpy(content.reshape(-1)).view(content.shape)
        for layer in getattr(module, module.mapping[node.output[0]]).modules():
            if isinstance(layer, nn.Linear):
                held = weight if node.op_type == "Gemm" else weight.T
                layer.out_features, layer.in_features = held.shape
            elif isinstance(layer, nn.modules.conv._ConvNd):
                held, (first, second) = weight, weight.shape[:2]
                across = second * layer.groups
                pair = (across, first) if layer.transposed is False else (first, across)
                layer.in_channels, layer.out_channels = pair
            else:
                continue
            layer.weight = nn.Parameter(held, requires_grad=False)


def _no_torchvision() -> AbstractContextManager[None]:
    """Spare the start 2 seconds: onnx2pytorch imports torchvision for operators on image regions.

    None of them can be bounded; a network that holds one is refused.
    """
    if "onnx2pytorch" in sys.modules or "torchvision" in sys.modules:
        return nullcontext()
    operators = dict.fromkeys(("deform_conv2d", "roi_pool", "roi_align"), _no_image_regions)
    io = dict.fromkeys(("decode_image", "ImageReadMode"), _no_image_regions)
    return modules_replaced(
        {
            "torchvision": stand_in("torchvision", {}),
            "torchvision.io": stand_in("torchvision.io", io),
            "torchvision.ops": stand_in("torchvision.ops", operators),
        }
    )


def _no_image_regions(*_args: object, **_kwargs: object) -> None:
    raise ModelError("operators on image regions and image files are not supported.")
