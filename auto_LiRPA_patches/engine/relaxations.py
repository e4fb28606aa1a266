"""Bounds and relaxations of every node, grown from the input upwards.

The bounds of a relaxed node's input come from three sources, each sound, the tighter one kept
where two are known: the interval image of what is known below, a backward pass, and a reference
given by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.relaxed import Relaxed


@dataclass
class Relaxations:
    """Bounds per node and the relaxations made from them, filled in topological order.

    Attributes:
        graph: the network.
        box: the input boxes ``[B, *input_shape]``.
        bounds: per node, ``[B, *shape]``.
        features: per activation, the elements it relaxes (None = all); see `Activation.relax`.
        relaxed: per node that needs bounds, its relaxation (α-independent part).
    """

    graph: Graph
    box: Interval
    features: Mapping[int, Tensor | None] = field(default_factory=dict)
    bounds: dict[int, Interval] = field(default_factory=dict)
    relaxed: dict[int, Any] = field(default_factory=dict)

    def interval(self, node: int) -> Interval:
        """Interval image of `node` from the bounds known below it; remembered on the way."""
        if 0 not in self.bounds:
            self.bounds[0] = self.box
        missing = [index for index in range(1, node + 1) if index not in self.bounds]
        if missing:
            self.graph.weights.expect(self.graph.handles(missing))
        for index in missing:
            entry = self.graph.nodes[index]
            if entry.operator is None:
                raise ValueError(f"{entry.name}: a second input")
            with torch.no_grad():
                image = entry.operator.interval(
                    self.graph.weights, *(self.bounds[source].detach() for source in entry.inputs)
                )
                self.bounds[index] = self.graph.neurons.agreed_bounds(index, image)
        return self.bounds[node]

    def over(self, bounds: Mapping[int, Interval]) -> Relaxations:
        """The same with other bounds of some nodes; its relaxations are made anew."""
        return Relaxations(self.graph, self.box, self.features, {**self.bounds, **bounds})

    def set_bounds(self, node: int, bounds: Interval) -> None:
        """Replace what is known of `node`; nodes above it are computed afterwards."""
        self.bounds[node] = bounds

    def lines(self, index: int, alphas: Mapping[int, Tensor] | None) -> Any:
        """The relaxation of node `index` for rows that use `alphas` (None = CROWN's own lines)."""
        relaxation = self.relaxation(index)
        operator = self.graph.nodes[index].operator
        if isinstance(operator, Activation | Relaxed):
            alpha = None if alphas is None else alphas.get(index)
            return operator.lines(relaxation, alpha)
        return relaxation

    def activation(self, index: int) -> tuple[Activation | Relaxed, Any] | None:
        """The operator at node `index` with its relaxation; None where α has no part."""
        operator = self.graph.nodes[index].operator
        if not isinstance(operator, Activation | Relaxed):
            return None
        return operator, self.relaxation(index)

    def initial_alphas(self, rows: int, below: int | None = None) -> dict[int, Tensor]:
        """CROWN's own slopes, the same for every row: per activation ``[K, rows, B, F]``, a view.

        Args:
            rows: number of rows S.
            below: only of activations before this node; None = all.
        """
        alphas = {}
        for index in self.graph.relaxed:
            found = self.activation(index) if below is None or index < below else None
            if found is not None:
                initial = found[0].initial_alpha(found[1]).detach()
                alphas[index] = initial.unsqueeze(1).expand(-1, rows, -1, -1)
        return alphas

    def relaxation(self, index: int) -> Any:
        """The α-independent relaxation of node `index`, made from its inputs' bounds once."""
        if index not in self.relaxed:
            node = self.graph.nodes[index]
            sources = [self.bounds.get(s) or self.interval(s) for s in node.inputs]
            if isinstance(node.operator, Activation):
                self.relaxed[index] = node.operator.relax(
                    sources[0].flatten(), self.features.get(index)
                )
            elif isinstance(node.operator, Relaxed):
                self.relaxed[index] = node.operator.relax(*sources)
            else:
                raise TypeError(f"{node.name}: no relaxation is known for this operator")
        return self.relaxed[index]
