"""One numbering for all neurons that can be split: the relaxed features of all activations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.activation import Activation
from auto_LiRPA_patches.operators.base import num_elements
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab.cuts import Cuts
from complete_verifier.bounds.root import Root

# Units in the last place: a narrower interval has no point inside that makes two useful halves.
_RESOLUTION = 64


@dataclass(frozen=True)
class FeatureSpan:
    """The features of one activation, ``offset .. offset + count`` in the numbering.

    Attributes:
        activation: node index of the activation.
        source: node index of its input, which a split speaks of.
        index: ``[F]`` elements of `source`; None = all of them, in order.
        kink: where the activation is split, if one split makes it exact; else it is split at any
            point, any number of times.
        kinds: number K of its α per feature.
        alpha_offset: its α are at ``alpha_offset .. alpha_offset + K F``, K-major.
    """

    activation: int
    source: int
    offset: int
    count: int
    index: Tensor | None
    kink: float | None = 0.0
    kinds: int = 1
    alpha_offset: int = 0

    @property
    def stop(self) -> int:
        """The first feature behind the span."""
        return self.offset + self.count

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
        spans, total, alphas = [], 0, 0
        for activation in root.graph.relaxed:
            if activation not in root.alphas:
                continue
            source = root.graph.nodes[activation].inputs[0]
            index = root.features.get(activation)
            count = num_elements(root.graph.nodes[source].shape)
            count = count if index is None else int(index.numel())
            operator = root.graph.nodes[activation].operator
            kink = operator.kink if isinstance(operator, Activation) else None
            kinds = int(root.alphas[activation].shape[0])
            spans.append(FeatureSpan(activation, source, total, count, index, kink, kinds, alphas))
            total += count
            alphas += kinds * count
        return Features(root.graph, tuple(spans), total, root.bounds)

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """``[..., T]`` cut into one ``[..., F]`` per activation."""
        return {
            span.activation: values[..., span.offset : span.offset + span.count]
            for span in self.spans
        }

    @property
    def curved(self) -> bool:
        """Whether any activation is split at points other than its kink."""
        return any(span.kink is None for span in self.spans)

    def split_alphas(self, table: Tensor) -> dict[int, Tensor]:
        """``[..., A]``, the α of all activations, as one ``[K, ..., F]`` per activation."""
        parts = {}
        for span in self.spans:
            own = table[..., span.alpha_offset : span.alpha_offset + span.kinds * span.count]
            if span.kinds == 1:
                parts[span.activation] = own.unsqueeze(0)
            else:
                halves = own.unflatten(-1, (span.kinds, span.count))
                parts[span.activation] = halves.movedim(-2, 0).contiguous()
        return parts

    def join_alphas(self, alphas: Mapping[int, Tensor]) -> Tensor:
        """``[..., A]`` from one ``[K, ..., F]`` per activation."""
        if not self.spans:
            raise ValueError("no activation has features")
        parts = [kind for span in self.spans for kind in alphas[span.activation].unbind(0)]
        return torch.cat(parts, dim=-1)

    def bounds(
        self, signs: Tensor, cuts: Cuts | None = None, ranges: Tensor | None = None
    ) -> dict[int, Interval]:
        """The root's bounds of every bounded node, narrowed by splits.

        Args:
            signs: ``[B, T]``; counts for features with a kink.
            cuts: counts for the others; None where there are none.
            ranges: ``[B, 2, T]`` bounds of the features at least as tight as the root's; None =
                the root's.

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
                    own = signs[:, span.offset : span.stop]
                    above, below = span.of(lower), span.of(upper)
                    if ranges is not None:
                        above, below = ranges[:, :, span.offset : span.stop].unbind(1)
                    if span.kink is None:
                        if cuts is not None:
                            above = above.maximum(cuts.lower[:, span.offset : span.stop])
                            below = below.minimum(cuts.upper[:, span.offset : span.stop])
                        lower, upper = span.put(lower, above), span.put(upper, below)
                        continue
                    # Arithmetic, not a selection by mask, which takes ten times as long.
                    above = torch.addcmul(above, own.clamp(min=0), above.clamp(max=0), value=-1)
                    below = torch.addcmul(below, own.clamp(max=0), below.clamp(min=0))
                    lower, upper = span.put(lower, above), span.put(upper, below)
            shape = (batch, *bounds.lower.shape[1:])
            narrowed[node] = Interval(lower.reshape(shape), upper.reshape(shape))
        return narrowed

    def open(self, signs: Tensor, cuts: Cuts | None = None, ranges: Tensor | None = None) -> Tensor:
        """``[B, T]`` bool: features that can be split (further).

        With a kink: neither split nor stable at the root. Without: wider than what floating point
        resolves.
        """
        is_open = (signs == 0) & self.unstable
        if cuts is not None:
            lower, upper = self.within(cuts, ranges)
            size = torch.maximum(lower.abs(), upper.abs()).clamp(min=1.0)
            wide = upper - lower > _RESOLUTION * torch.finfo(size.dtype).eps * size
            for span in self.spans:
                if span.kink is None:
                    own = slice(span.offset, span.stop)
                    is_open[:, own] = wide[:, own]
        return is_open

    def own_bounds(self, bounds: Mapping[int, Interval]) -> Tensor:
        """``[B, 2, T]`` lower and upper bounds of the features, from those of their nodes."""
        found = [bounds[span.source].flatten() for span in self.spans]
        sides = [
            [span.of(own.lower) for span, own in zip(self.spans, found, strict=True)],
            [span.of(own.upper) for span, own in zip(self.spans, found, strict=True)],
        ]
        return torch.stack([torch.cat(side, dim=1) for side in sides], dim=1)

    def within(self, cuts: Cuts, ranges: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Lower and upper bound ``[B, T]`` of every feature within the cuts.

        Args:
            ranges: ``[B, 2, T]`` the features' own bounds; None = the root's.
        """
        lower, upper = (self.own_bounds(self.root) if ranges is None else ranges).unbind(1)
        return cuts.lower.maximum(lower), cuts.upper.minimum(upper)

    @property
    def unstable(self) -> Tensor:
        """``[T]`` bool: l < 0 < u at the root."""
        parts = []
        for span in self.spans:
            bounds = self.root[span.source].flatten()
            lower, upper = span.of(bounds.lower[0]), span.of(bounds.upper[0])
            parts.append((lower < 0) & (upper > 0))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)
