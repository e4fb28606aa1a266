"""One numbering for all neurons that can be split: the relaxed features of all activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bounds.root import Root


@dataclass(frozen=True)
class FeatureSpan:
    """The features of one activation, ``offset .. offset + count`` in the numbering.

    Attributes:
        activation: node index of the activation.
        source: node index of its input, which a split speaks of.
        index: ``[F]`` elements of `source`; None = all of them, in order.
    """

    activation: int
    source: int
    offset: int
    count: int
    index: Tensor | None

    def of(self, values: Tensor) -> Tensor:
        """The features' columns of ``values [..., N]``: ``[..., F]``."""
        return values if self.index is None else values[..., self.index]

    def put(self, values: Tensor, own: Tensor) -> Tensor:
        """``values [..., N]`` with the features' columns replaced by ``own [..., F]``."""
        return own if self.index is None else values.index_copy(-1, self.index, own)


@dataclass(frozen=True)
class Features:
    """All splittable neurons of a region, in topological order of their activations.

    Attributes:
        graph: the network.
        spans: one per activation with at least one relaxed feature.
        total: number of features T.
        root: per bounded node, the root's bounds ``[1, *shape]``.
    """

    graph: Graph
    spans: tuple[FeatureSpan, ...]
    total: int
    root: Mapping[int, Interval]

    @staticmethod
    def of(root: Root) -> Features:
        """The numbering of a region's root."""
        spans, total = [], 0
        for activation in root.graph.relaxed:
            if activation not in root.alphas:
                continue
            source = root.graph.nodes[activation].inputs[0]
            index = root.features.get(activation)
            count = num_elements(root.graph.nodes[source].shape)
            count = count if index is None else int(index.numel())
            spans.append(FeatureSpan(activation, source, total, count, index))
            total += count
        return Features(root.graph, tuple(spans), total, root.bounds)

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """``[..., T]`` cut into one ``[..., F]`` per activation."""
        return {
            span.activation: values[..., span.offset : span.offset + span.count]
            for span in self.spans
        }

    def bounds(self, signs: Tensor) -> dict[int, Interval]:
        """The root's bounds of every bounded node, narrowed by ``signs [B, T]``.

        Returns:
            Per node ``[B, *shape]``: a feature split with +1 has lower bound 0 or more, with -1
            upper bound 0 or less.
        """
        batch = signs.shape[0]
        narrowed: dict[int, Interval] = {}
        for node, bounds in self.root.items():
            lower = bounds.lower.flatten(1).expand(batch, -1)
            upper = bounds.upper.flatten(1).expand(batch, -1)
            for span in self.spans:
                if span.source == node:
                    own = signs[:, span.offset : span.offset + span.count]
                    above, below = span.of(lower), span.of(upper)
                    # Arithmetic, not a selection by mask, which takes ten times as long.
                    above = torch.addcmul(above, own.clamp(min=0), above.clamp(max=0), value=-1)
                    below = torch.addcmul(below, own.clamp(max=0), below.clamp(min=0))
                    lower, upper = span.put(lower, above), span.put(upper, below)
            shape = (batch, *bounds.lower.shape[1:])
            narrowed[node] = Interval(lower.reshape(shape), upper.reshape(shape))
        return narrowed

    def open(self, signs: Tensor) -> Tensor:
        """``[B, T]`` bool: features that are neither split nor stable at the root."""
        return (signs == 0) & self.unstable

    @property
    def unstable(self) -> Tensor:
        """``[T]`` bool: l < 0 < u at the root."""
        parts = []
        for span in self.spans:
            bounds = self.root[span.source].flatten()
            lower, upper = span.of(bounds.lower[0]), span.of(bounds.upper[0])
            parts.append((lower < 0) & (upper > 0))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)
