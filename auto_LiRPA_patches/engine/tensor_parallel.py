"""One rank's graph of a network whose wide layers are split by neuron (tensor parallelism).

The result is an ordinary graph: with this rank's neurons in the nodes of a zone, and all neurons
elsewhere. Only operators on the border of a zone exchange anything, so every pass through it - of
values, intervals, coefficients, gradients - is written once for one rank and for many. Passes
gather nothing and reduce nothing but what `operators/linear_tp.py` lists.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph, Node
from auto_LiRPA_patches.engine.neurons import Neurons
from auto_LiRPA_patches.engine.zones import Zones, find_zones
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import AffineOperator, Operator
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.linear_tp import (
    AllNeurons,
    BoundLinearTPCol,
    BoundLinearTPRow,
    OwnNeurons,
)
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Reshape
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.matrix_blocks import (
    matrix_name,
    part_of,
    register_blocks,
    with_memory_of_its_own,
)
from auto_LiRPA_patches.sharding.slices import Slices
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


def split_neurons(
    graph: Graph, group: Communicator, weights: WeightSource, *, refined: bool = True
) -> Graph:
    """This rank's graph of a network, its parameters in `weights`.

    Args:
        graph: the whole network.
        group: the ranks that share it; with one rank nothing is split.
        weights: an empty store; takes a copy of this rank's part of each parameter. Where it is
            sharded itself (over the data axis), its ranks hold the same part.
        refined: whether bounds of split neurons are made by backward passes.

    The caller drops `graph`, and with it the only references to whole parameters.
    """
    return _Splitting(graph, find_zones(graph, group.size), group, weights, refined).run()


class _Splitting:
    """Builds one rank's graph, node by node."""

    def __init__(
        self, graph: Graph, zones: Zones, group: Communicator, weights: WeightSource, refined: bool
    ) -> None:
        self.graph = graph
        self.zones = zones
        self.group = group
        self.moved = _MovedWeights(graph.weights, weights, graph.device)
        self.refined = refined
        self.nodes: list[Node] = []
        self.split: dict[int, Slices] = {}
        self.place: dict[int, int] = {}  # node of the whole graph -> its node here
        self.whole: dict[int, int] = {}  # split node -> its value put together

    def run(self) -> Graph:
        """The graph up to its output."""
        for index, node in enumerate(self.graph.nodes):
            self.place[index] = self._add_node(index, node)
        return replace(
            self.graph,
            nodes=tuple(self.nodes),
            output=self.place[self.graph.output],
            weights=self.moved.target,
            neurons=Neurons(self.group, self.split, self.refined),
        )

    def _add_node(self, index: int, node: Node) -> int:
        operator = node.operator
        if operator is None:
            return self._append(node.name, None, ())
        if index in self.zones.nodes:
            slices = self._slices(self.zones.nodes[index])
            if isinstance(operator, Linear):
                return self._append(node.name, self._column(operator, slices), self._all_of(node))
            inputs = tuple(self.place[source] for source in node.inputs)
            return self._append(node.name, self._elementwise(operator, slices), inputs)
        if index in self.zones.rows and isinstance(operator, Linear):
            return self._add_row(index, node, operator)
        return self._append(node.name, self.moved.operator(operator), self._all_of(node))

    def _add_row(self, index: int, node: Node, layer: Linear) -> int:
        (source,) = node.inputs
        slices = self._slices(layer.input_shapes[0][0])
        below = self.place[source]
        if index in self.zones.alone:
            own = OwnNeurons.of(f"{node.name}/own", slices, self.group)
            below = self._append(own.name, own, (below,))
        weight = self.moved.matrix(layer, slices, 1)
        bias = None if layer.bias is None else self.moved.handle(layer.bias)
        row = BoundLinearTPRow(
            layer.name,
            ((slices.own,),),
            layer.output_shape,
            weight,
            bias,
            layer.transposed,
            slices,
            self.group,
        )
        return self._append(node.name, row, (below,))

    def _column(self, layer: Linear, slices: Slices) -> Operator:
        weight = self.moved.matrix(layer, slices, 0)
        bias = None if layer.bias is None else self.moved.vector(layer.bias, slices)
        return BoundLinearTPCol(
            layer.name,
            layer.input_shapes,
            (slices.own,),
            weight,
            bias,
            layer.transposed,
            slices,
            self.group,
        )

    def _elementwise(self, operator: Operator, slices: Slices) -> Operator:
        """The operator on this rank's neurons, a vector of them whatever axes it had."""
        shape = (slices.own,)
        shapes = (shape,) * len(operator.input_shapes)
        if isinstance(operator, ScaleShift):
            scale = None if operator.scale is None else self.moved.vector(operator.scale, slices)
            shift = None if operator.shift is None else self.moved.vector(operator.shift, slices)
            operator = replace(operator, scale=scale, shift=shift)
        elif not isinstance(operator, Activation | Sum | Reshape):
            raise TypeError(f"{operator.name}: {type(operator).__name__} cannot be split by neuron")
        return replace(operator, input_shapes=shapes, output_shape=shape)

    def _all_of(self, node: Node) -> tuple[int, ...]:
        """The inputs of a node that needs all neurons of each."""
        return tuple(self._whole(source) for source in node.inputs)

    def _whole(self, source: int) -> int:
        if source not in self.zones.nodes:
            return self.place[source]
        if source not in self.whole:
            slices = self._slices(self.zones.nodes[source])
            name = f"{self.graph.nodes[source].name}/all"
            together: AffineOperator = AllNeurons.of(name, slices, self.group)
            self.whole[source] = self._append(name, together, (self.place[source],))
            shape = self.graph.nodes[source].shape
            if shape != (slices.total,):
                back = Reshape(f"{name}/shape", ((slices.total,),), shape)
                self.whole[source] = self._append(back.name, back, (self.whole[source],))
        return self.whole[source]

    def _slices(self, neurons: int) -> Slices:
        return Slices.even(neurons, self.group.size, self.group.rank)

    def _append(self, name: str, operator: Operator | None, inputs: tuple[int, ...]) -> int:
        shape = self.graph.input_shape if operator is None else operator.output_shape
        if isinstance(operator, BoundLinearTPCol | OwnNeurons):
            self.split[len(self.nodes)] = operator.slices
        elif inputs and inputs[0] in self.split:
            if not isinstance(operator, BoundLinearTPRow | AllNeurons):
                self.split[len(self.nodes)] = self.split[inputs[0]]
        self.nodes.append(Node(name, operator, inputs, shape))
        return len(self.nodes) - 1


@dataclass(frozen=True)
class _Cut:
    """Which part of a parameter: of all neurons None, else along one axis."""

    axis: int | None
    slices: Slices | None


class _MovedWeights:
    """Registers this rank's part of each parameter in another store, each part once."""

    def __init__(self, source: WeightSource, target: WeightSource, device: torch.device) -> None:
        self._source = source
        self.target = target
        self._device = device
        self._known: dict[tuple[int, _Cut], tuple[WeightHandle, ...]] = {}
        self._names: set[str] = set()

    def operator(self, operator: Operator) -> Operator:
        """The same operator with all of its parameters in the other store."""
        moved: dict[str, object] = {}
        for field in fields(operator):
            value = getattr(operator, field.name)
            if isinstance(value, WeightHandle):
                moved[field.name] = self.handle(value)
            elif isinstance(value, tuple) and any(isinstance(v, WeightHandle) for v in value):
                moved[field.name] = tuple(
                    self.handle(v) if isinstance(v, WeightHandle) else v for v in value
                )
        return replace(operator, **moved) if moved else operator  # type: ignore[arg-type]

    def handle(self, handle: WeightHandle) -> WeightHandle:
        """All of a parameter."""
        return self._register(handle, _Cut(None, None), self._source.gather(handle))

    def vector(self, handle: WeightHandle, slices: Slices) -> WeightHandle:
        """The part of a constant per neuron, ``[n]``; a single number serves all neurons."""
        flat = self._source.gather(handle).reshape(-1)
        if flat.numel() == 1:
            return self._register(handle, _Cut(-1, None), flat)
        return self._register(handle, _Cut(-1, slices), slices.take(flat))

    def matrix(self, layer: Linear, slices: Slices, axis: int) -> tuple[WeightHandle, ...]:
        """The part of W ``[out, in]`` for some outputs (axis 0) or inputs (axis 1), in blocks."""
        axis = 1 - axis if layer.transposed else axis
        first, cut = layer.weight[0], _Cut(axis, slices)
        if (first.index, cut) not in self._known:
            part = part_of(self._source, layer.weight, axis, slices.start, slices.own)
            self._known[first.index, cut] = register_blocks(
                self.target,
                self._new_name(matrix_name(layer.weight), cut),
                part,
                dtype=first.dtype,
                device=self._device,
            )
            self._names.update(block.name for block in self._known[first.index, cut])
        return self._known[first.index, cut]

    def _register(self, handle: WeightHandle, cut: _Cut, part: Tensor) -> WeightHandle:
        key = (handle.index, cut)
        if key not in self._known:
            name = self._new_name(handle.name, cut)
            if cut.slices is not None:
                part = with_memory_of_its_own(part)
            elif not self.target.copies:
                part = part.clone()  # the whole graph's may lie in a file
            self._known[key] = (
                self.target.register(name, part, dtype=handle.dtype, device=self._device),
            )
        return self._known[key][0]

    def _new_name(self, name: str, cut: _Cut) -> str:
        taken = name in self._names or any(own.startswith(f"{name}[") for own in self._names)
        if taken:  # tied weights that are cut in two ways
            name = f"{name}, cut along axis {cut.axis}"
        self._names.add(name)
        return name
