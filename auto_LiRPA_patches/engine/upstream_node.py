"""Read-only view of one node of auto_LiRPA's graph, in the engine's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import UnsupportedOperatorError
from auto_LiRPA_patches.operators.base import Shape, num_elements
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.matrix_blocks import register_blocks, stored_by_columns
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How a graph is made.

    Attributes:
        precision: dtype of parameters, values and bounds.
        device: where they live.
        relu_lower_slope: CROWN's lower slope of an unstable ReLU; see `Relu.lower_slope`.
        neuron_ranks: the ranks that share wide layers, each with some of the neurons
            (`parallel.tp`); all build the same network.
        refine_split: whether bounds of neurons so shared are made by backward passes (`exact` of
            `parallel.tp_intermediate`).
    """

    precision: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    relu_lower_slope: str = "adaptive"
    neuron_ranks: Communicator = Communicator.single("tp")
    refine_split: bool = True


@dataclass(frozen=True)
class UpstreamNode:
    """One node of a `BoundedModule`.

    Attributes:
        bound: upstream's object.
        weights: where constant operands are registered.
        build: precision and device the constants are brought to.
        perturbed: names of all nodes whose value depends on the network's input.
    """

    bound: Any
    weights: WeightSource
    build: BuildOptions
    perturbed: frozenset[str]

    @property
    def kind(self) -> str:
        """Upstream's class name, such as ``BoundRelu``."""
        return type(self.bound).__name__

    @property
    def name(self) -> str:
        """The node's unique name."""
        return str(self.bound.name)

    @property
    def attributes(self) -> dict[str, Any]:
        """ONNX attributes of the operator."""
        return dict(self.bound.attr)

    @property
    def output_index(self) -> int:
        """Which of the operator's results this node is (Split has several)."""
        return int(self.bound.output_index)

    @property
    def operands(self) -> list[UpstreamNode]:
        """All operands, constant ones included, in ONNX order."""
        return [
            UpstreamNode(source, self.weights, self.build, self.perturbed)
            for source in self.bound.inputs
        ]

    @property
    def is_input(self) -> bool:
        """Whether this is the network's input."""
        return self.kind == "BoundInput"

    @property
    def depends_on_input(self) -> bool:
        """Whether the value depends on the network's input."""
        return self.name in self.perturbed

    @property
    def shape(self) -> Shape:
        """Shape without the batch axis of a value that depends on the input.

        A single number per input (upstream's shape ``[1]``) is a vector of one element, so that
        every value has an axis of elements.

        Raises:
            UnsupportedOperatorError: the first axis is not the batch.
        """
        full = tuple(int(size) for size in self.bound.output_shape)
        if not full or full[0] != 1:
            self.refuse(f"its output has shape {list(full)}, whose first axis is not the batch")
        return full[1:] or (1,)

    @property
    def constant(self) -> Tensor:
        """The value of a node that does not depend on the input."""
        if self.kind == "BoundParams":
            return self.bound.param.detach()
        if self.kind == "BoundBuffers":
            return self.bound.buffer.detach()
        value = getattr(self.bound, "value", None)
        if value is None:
            value = self.bound.forward_value
        return value.detach()

    def register(self) -> WeightHandle:
        """Hand the constant to the weight source."""
        return self._register(self._weight_name(), self.constant)

    def register_matrix(self) -> tuple[tuple[WeightHandle, ...], bool]:
        """Hand a matrix to the weight source in blocks of rows.

        Returns:
            The blocks, and whether they are of the transposed matrix.
        """
        matrix, build = self.constant, self.build
        flipped = stored_by_columns(matrix)
        blocks = register_blocks(
            self.weights,
            self._weight_name(),
            matrix.T if flipped else matrix,
            dtype=build.precision,
            device=build.device,
        )
        return blocks, flipped

    def register_broadcast(
        self, shape: Shape, value: Tensor | None = None, name: str | None = None
    ) -> WeightHandle:
        """Register a constant that broadcasts *to* values of ``shape`` (without batch).

        Args:
            shape: of the values it meets.
            value, name: of a constant made from this node's; None = the node's own.

        Raises:
            UnsupportedOperatorError: it has a batch of its own, or would widen the value.
        """
        constant = self.constant if value is None else value
        while constant.dim() > len(shape) and constant.shape[0] == 1:
            constant = constant.squeeze(0)
        fits = constant.dim() <= len(shape) and all(
            own in (1, size)
            for own, size in zip(reversed(constant.shape), reversed(shape), strict=False)
        )
        if not fits:
            self.refuse(
                f"a constant of shape {list(constant.shape)} meets a value of shape "
                f"{list(shape)} (without batch) that it would have to widen"
            )
        name = name or f"{self._weight_name()}:{num_elements(shape)}"
        return self._register(name, constant)

    def refuse(self, why: str) -> NoReturn:
        """Raise UnsupportedOperatorError naming the node and operator."""
        operator = self.kind.removeprefix("Bound")
        raise UnsupportedOperatorError(
            f'node "{self.name}": operator {operator} is not supported in this form: {why}.'
        )

    def _register(self, name: str, constant: Tensor) -> WeightHandle:
        build = self.build
        return self.weights.register(name, constant, dtype=build.precision, device=build.device)

    def _weight_name(self) -> str:
        original = getattr(self.bound, "ori_name", None)
        return f"{original or 'constant'}@{self.name}"
