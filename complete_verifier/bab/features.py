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
        index: ``[F]`` elements of `source`.
    """

    activation: int
    source: int
    offset: int
    count: int
    index: Tensor


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
            if index is None:
                count = num_elements(root.graph.nodes[source].shape)
                index = torch.arange(count, device=root.box.lower.device)
            spans.append(FeatureSpan(activation, source, total, int(index.numel()), index))
            total += int(index.numel())
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
                    lower = _narrow(lower, span.index, own > 0, at_least=True)
                    upper = _narrow(upper, span.index, own < 0, at_least=False)
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
            lower, upper = bounds.lower[0, span.index], bounds.upper[0, span.index]
            parts.append((lower < 0) & (upper > 0))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


def _narrow(values: Tensor, index: Tensor, where: Tensor, *, at_least: bool) -> Tensor:
    """Clamp ``values [B, N]`` at ``index [F]`` to zero from one side where ``where [B, F]``."""
    picked = values[:, index]
    clamped = picked.clamp(min=0) if at_least else picked.clamp(max=0)
    return values.index_copy(1, index, torch.where(where, clamped, picked))
