"""Write a small PyTorch network as an ONNX file, node by node.

PyTorch's own exporters want further packages and fold BatchNormalization away; these networks are
examples of what a verifier meets, so each layer becomes exactly one node with its own weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 13
IR_VERSION = 8  # what onnxruntime >= 1.10 reads


class Residual(nn.Module):
    """body(x) + shortcut(x); both map [B, C, H, W] to one common shape."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the two branches."""
        return self.body(x) + self.shortcut(x)


class GraphWriter:
    """Collects the nodes and weights of one network, in the order of its forward pass."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._emitters: dict[type[nn.Module], Callable[..., str]] = {
            nn.Sequential: self._sequential,
            Residual: self._residual,
            nn.Linear: self._linear,
            nn.Conv2d: self._conv,
            nn.BatchNorm2d: self._batch_norm,
            nn.ReLU: self._relu,
            nn.Sigmoid: self._sigmoid,
            nn.Tanh: self._tanh,
            nn.Flatten: self._flatten,
            nn.Identity: self._identity,
        }

    def emit(self, module: nn.Module, source: str) -> str:
        """Append `module` applied to the value named `source`; return the name of its output.

        Raises TypeError if there is no rule for this type of module.
        """
        emitter = self._emitters.get(type(module))
        if emitter is None:
            raise TypeError(f"no rule to write a {type(module).__name__} as ONNX; add one here")
        return emitter(module, source)

    def _node(self, operator: str, sources: list[str], **attributes: object) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, sources, [name], name=name, **attributes))
        return name

    def _weight(self, tensor: Tensor) -> str:
        name = f"weight_{len(self.weights)}"
        values = tensor.detach().numpy().astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def _sequential(self, module: nn.Sequential, source: str) -> str:
        for layer in module:
            source = self.emit(layer, source)
        return source

    def _residual(self, module: Residual, source: str) -> str:
        body, shortcut = self.emit(module.body, source), self.emit(module.shortcut, source)
        return self._node("Add", [body, shortcut])

    def _linear(self, module: nn.Linear, source: str) -> str:
        weight, bias = self._weight(module.weight), self._weight(module.bias)
        return self._node("Gemm", [source, weight, bias], transB=1)

    def _conv(self, module: nn.Conv2d, source: str) -> str:
        inputs = [source, self._weight(module.weight)]
        if module.bias is not None:
            inputs.append(self._weight(module.bias))
        if isinstance(module.padding, str):
            raise TypeError(f"Conv2d with padding={module.padding!r}: give numbers instead")
        height, width = module.padding
        return self._node(
            "Conv",
            inputs,
            kernel_shape=list(module.kernel_size),
            pads=[height, width, height, width],
            strides=list(module.stride),
        )

    def _batch_norm(self, module: nn.BatchNorm2d, source: str) -> str:
        if module.running_mean is None or module.running_var is None:
            raise TypeError("a BatchNorm2d without running statistics has no form for inference")
        tensors = (module.weight, module.bias, module.running_mean, module.running_var)
        names = [self._weight(tensor) for tensor in tensors]
        return self._node("BatchNormalization", [source, *names], epsilon=module.eps)

    def _relu(self, module: nn.ReLU, source: str) -> str:
        return self._node("Relu", [source])

    def _sigmoid(self, module: nn.Sigmoid, source: str) -> str:
        return self._node("Sigmoid", [source])

    def _tanh(self, module: nn.Tanh, source: str) -> str:
        return self._node("Tanh", [source])

    def _flatten(self, module: nn.Flatten, source: str) -> str:
        return self._node("Flatten", [source], axis=1)

    def _identity(self, module: nn.Identity, source: str) -> str:
        return source  # no node: the shortcut of a residual block is the value itself


def save_onnx(
    network: nn.Module, input_shape: tuple[int, ...], num_outputs: int, path: Path
) -> None:
    """Write `network`, in eval mode, to `path`.

    Args:
        network: built of the modules that `GraphWriter` has a rule for.
        input_shape: shape of one input, without the batch, which is fixed at 1.
        num_outputs: length of the output, [1, num_outputs].
        path: the file to write; its folder must exist.
    """
    writer = GraphWriter()
    output = writer.emit(network.eval(), "input")
    writer.nodes.append(helper.make_node("Identity", [output], ["output"], name="output"))
    graph = helper.make_graph(
        writer.nodes,
        path.stem,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, *input_shape])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, num_outputs])],
        writer.weights,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
