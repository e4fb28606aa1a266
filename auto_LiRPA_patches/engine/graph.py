"""The network as the engine sees it: nodes in topological order over one perturbed input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.neurons import Neurons
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.base import AffineOperator, Operator, Shape, num_elements
from auto_LiRPA_patches.operators.convolution import BatchNorm
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear_tp import OwnNeurons
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Concat, ConstantPad, Movement, Reshape, Transpose
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True)
class Node:
    """One value of the network.

    Attributes:
        name: upstream's name, for messages.
        operator: how it is computed; None for the input (node 0).
        inputs: indices of the perturbed nodes it is computed from.
        shape: without the batch axis.
    """

    name: str
    operator: Operator | None
    inputs: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; node 0 is the input.

    Attributes:
        nodes: every value that depends on the input.
        output: index of the network's output.
        weights: where operators read their parameters.
        precision: dtype of parameters, values and bounds.
        device: where they live.
        neurons: which nodes have this rank's neurons only.
    """

    nodes: tuple[Node, ...]
    output: int
    weights: WeightSource
    precision: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    neurons: Neurons = Neurons()

    @property
    def input_shape(self) -> Shape:
        """Shape of the input without the batch axis."""
        return self.nodes[0].shape

    @property
    def output_shape(self) -> Shape:
        """Shape of the output without the batch axis."""
        return self.nodes[self.output].shape

    @cached_property
    def relaxed(self) -> tuple[int, ...]:
        """Nodes whose relaxation needs bounds of their inputs, in topological order."""
        return tuple(
            index
            for index, node in enumerate(self.nodes)
            if node.operator is not None and node.operator.needs_bounds
        )

    @cached_property
    def bounded(self) -> tuple[int, ...]:
        """Nodes whose bounds some relaxation needs, in topological order."""
        wanted = {source for index in self.relaxed for source in self.nodes[index].inputs}
        return tuple(sorted(wanted))

    @cached_property
    def peaks(self) -> dict[int, int]:
        """What `row_elements` found of each node so far: branch and bound asks for every batch."""
        return {}

    @cached_property
    def interval_exact(self) -> frozenset[int]:
        """Nodes whose interval image is already the exact range of every element.

        True of anything elementwise over the input box, of one affine map of such values, and of
        elementwise functions of that: there a backward pass has nothing to gain.
        """
        independent: set[int] = {0}
        exact: set[int] = {0}
        for index, node in enumerate(self.nodes):
            operator, sources = node.operator, node.inputs
            if operator is None:
                continue
            elementwise = isinstance(
                operator, Movement | Concat | ScaleShift | BatchNorm | Activation
            )
            if elementwise and all(source in exact for source in sources):
                exact.add(index)
            keeps = isinstance(
                operator,
                (Reshape | Transpose | ConstantPad)
                | (ScaleShift | BatchNorm | Activation | OwnNeurons),
            )
            if keeps and all(source in independent for source in sources):
                independent.add(index)
            if isinstance(operator, AffineOperator) and sources[0] in independent:
                exact.add(index)
        return frozenset(exact)

    def is_refined(self, node: int) -> bool:
        """Whether a backward pass may tighten the interval image of `node`."""
        if node in self.neurons.split and not self.neurons.refined:
            return False
        return node not in self.interval_exact

    def most_elements(self, node: int) -> int:
        """Elements of `node` that a rank holds, at most; the same number on all ranks."""
        return self.neurons.most(node, num_elements(self.nodes[node].shape))

    def forward(self, x: Tensor) -> Tensor:
        """Value of the network.

        Args:
            x: ``[B, *input_shape]``, replicated.

        Returns:
            ``[B, *output_shape]``, differentiable in x; parameters are read per operator and read
            again by the gradient, never kept between.
        """
        self.weights.expect(self.handles(range(self.output + 1)))
        values: dict[int, Tensor] = {0: x}
        last_use = self._last_use
        for index, node in enumerate(self.nodes[: self.output + 1]):
            if node.operator is not None:
                values[index] = node.operator.forward(
                    self.weights, *(values[source] for source in node.inputs)
                )
            for source in set(node.inputs):
                if last_use[source] == index:
                    del values[source]
        return values[self.output]

    def intervals(self, box: Interval) -> dict[int, Interval]:
        """Interval bound propagation (Gowal et al. 2018, arXiv 1810.12715) of every node.

        Args:
            box: the input, ``[B, *input_shape]``.

        Returns:
            For each node index ``lower <= value <= upper`` over the box. No gradient.
        """
        self.weights.expect(self.handles(range(self.output + 1)))
        bounds: dict[int, Interval] = {0: box}
        with torch.no_grad():
            for index, node in enumerate(self.nodes[: self.output + 1]):
                if node.operator is not None:
                    bounds[index] = node.operator.interval(
                        self.weights, *(bounds[source] for source in node.inputs)
                    )
        return bounds

    def handles(self, indices: Iterable[int]) -> list[WeightHandle]:
        """The parameters of these nodes, in their order: what a pass through them gathers."""
        operators = (self.nodes[index].operator for index in indices)
        return [h for operator in operators if operator is not None for h in operator.handles]

    def handles_below(self, node: int) -> list[WeightHandle]:
        """The parameters that a backward pass from `node` gathers, in its order."""
        if node not in self._handles_below:
            reached = {node}
            for index in range(node, 0, -1):
                if index in reached:
                    reached.update(self.nodes[index].inputs)
            self._handles_below[node] = self.handles(sorted(reached, reverse=True))
        return self._handles_below[node]

    @cached_property
    def _handles_below(self) -> dict[int, list[WeightHandle]]:
        return {}

    @cached_property
    def _last_use(self) -> dict[int, int]:
        last = {self.output: len(self.nodes)}
        for index, node in enumerate(self.nodes[: self.output + 1]):
            for source in node.inputs:
                last[source] = max(last.get(source, 0), index)
        return last
