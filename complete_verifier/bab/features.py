"""One numbering for all neurons that can be split: the relaxed features of all activations.

Where ranks share a layer's neurons, its features are numbered over all of them. Tables ``[B, T]``
are replicated; what the engine takes and gives, and α, is of this rank's features alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.subproblems import splittable
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
        index: ``[F]`` elements of `source` as this rank has it; None = all of them, in order.
        kink: where the activation is split, if one split makes it exact; else it is split at any
            point, any number of times.
        kinds: number K of its α per feature.
        alpha_offset: its α are at ``alpha_offset .. alpha_offset + K F``, K-major.
        before: features of ranks before this one.
        held: features of this rank, F; None = all `count` of them.
        elements: ``[count]`` elements of `source` as counted over all ranks; None = all, in order.
    """

    activation: int
    source: int
    offset: int
    count: int
    index: Tensor | None
    kink: float | None = 0.0
    kinds: int = 1
    alpha_offset: int = 0
    before: int = 0
    held: int | None = None
    elements: Tensor | None = None

    @property
    def width(self) -> int:
        """Features of this rank, F."""
        return self.count if self.held is None else self.held

    @property
    def own(self) -> slice:
        """This rank's features in the numbering."""
        start = self.offset + self.before
        return slice(start, start + self.width)

    def is_own(self, feature: Tensor) -> Tensor:
        """``[n]`` bool: which of the features in the numbering are this rank's of this span."""
        return (feature >= self.own.start) & (feature < self.own.stop)

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
        alpha_width: columns A of a table of α; the same on all ranks, the last ones may be unused.
        root: per bounded node, the root's bounds ``[1, *shape]``.
    """

    graph: Graph
    spans: tuple[FeatureSpan, ...]
    total: int
    root: Mapping[int, Interval]
    alpha_width: int

    @staticmethod
    def of(root: Root) -> Features:
        """The numbering of a region's root.

        Beside products and softmax only neurons with a kink count: the curves that these consist
        of are many, and a point split of one says little.
        """
        spans, total, alphas = [], 0, 0
        curves_too = splittable(root.graph)
        for activation in root.graph.relaxed:
            if activation not in root.alphas:
                continue
            operator = root.graph.nodes[activation].operator
            kink = operator.kink if isinstance(operator, Activation) else None
            if kink is None and not curves_too:
                continue
            source = root.graph.nodes[activation].inputs[0]
            index = root.features.get(activation)
            shared = _shared_out(root.graph, source, index)
            kinds = int(root.alphas[activation].shape[0])
            span = FeatureSpan(
                activation,
                source,
                total,
                shared.count,
                index,
                kink,
                kinds,
                alphas,
                shared.before,
                shared.held,
                shared.elements,
            )
            spans.append(span)
            total += span.count
            alphas += kinds * span.width
        width = root.graph.neurons.group.agree_max(alphas)
        return Features(root.graph, tuple(spans), total, root.bounds, width)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """``[..., T]``, replicated, from this rank's ``[..., F]`` of each span.

        Communication: one all-reduce of the result where ranks share neurons.
        """
        neurons = self.graph.neurons
        if neurons.group.size == 1:
            return torch.cat(list(parts), dim=-1)
        table = parts[0].new_zeros(*parts[0].shape[:-1], self.total)
        for span, part in zip(self.spans, parts, strict=True):
            # What is replicated comes from the first rank.
            if span.source in neurons.split or neurons.group.rank == 0:
                table[..., span.own] = part
        return neurons.group.all_reduce_sum(table)

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """``[..., T]`` cut into one ``[..., F]`` per activation."""
        return {span.activation: values[..., span.own] for span in self.spans}

    @property
    def curved(self) -> bool:
        """Whether any activation is split at points other than its kink."""
        return any(span.kink is None for span in self.spans)

    @property
    def views_alphas(self) -> bool:
        """Whether all that `split_alphas` gives are views of the table."""
        return all(span.kinds == 1 for span in self.spans)

    def split_alphas(self, table: Tensor) -> dict[int, Tensor]:
        """``[..., A]``, the α of all activations, as one ``[K, ..., F]`` per activation."""
        parts = {}
        for span in self.spans:
            own = table[..., span.alpha_offset : span.alpha_offset + span.kinds * span.width]
            if span.kinds == 1:
                parts[span.activation] = own.unsqueeze(0)
            else:
                halves = own.unflatten(-1, (span.kinds, span.width))
                parts[span.activation] = halves.movedim(-2, 0).contiguous()
        return parts

    def join_alphas(self, alphas: Mapping[int, Tensor]) -> Tensor:
        """``[..., A]`` from one ``[K, ..., F]`` per activation."""
        if not self.spans:
            raise ValueError("no activation has features")
        parts = [kind for span in self.spans for kind in alphas[span.activation].unbind(0)]
        table = torch.cat(parts, dim=-1)
        return torch.nn.functional.pad(table, (0, self.alpha_width - table.shape[-1]))

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
                    own = signs[:, span.own]
                    above, below = span.of(lower), span.of(upper)
                    if ranges is not None:
                        above, below = ranges[:, :, span.own].unbind(1)
                    if span.kink is None:
                        if cuts is not None:
                            above = above.maximum(cuts.lower[:, span.own])
                            below = below.minimum(cuts.upper[:, span.own])
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
        both = [torch.stack([own.lower, own.upper], dim=1) for own in found]
        return self.joined([span.of(own) for span, own in zip(self.spans, both, strict=True)])

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
        if not self.spans:
            return torch.zeros(0, dtype=torch.bool)
        lower, upper = self.own_bounds(self.root)[0]
        return (lower < 0) & (upper > 0)


@dataclass(frozen=True)
class _SharedOut:
    """Of a span's features `count` in all, `before` and `held` as of `FeatureSpan`."""

    count: int
    before: int
    held: int | None
    elements: Tensor | None


def _shared_out(graph: Graph, source: int, index: Tensor | None) -> _SharedOut:
    """Who holds which features of a node; ``index [F]`` are this rank's, None = all it has."""
    width = num_elements(graph.nodes[source].shape)
    held = width if index is None else int(index.numel())
    if source not in graph.neurons.split:
        return _SharedOut(held, 0, None, index)
    group, slices = graph.neurons.group, graph.neurons.split[source]
    wanted = torch.ones(width, dtype=torch.bool, device=graph.device)
    if index is not None:
        wanted = torch.zeros_like(wanted).index_fill_(0, index, True)
    elements = graph.neurons.among_all(source, wanted)
    counts = [row[0] for row in group.all_gather_integers("features", [held])]
    everything = len(elements) == slices.total
    return _SharedOut(
        len(elements), sum(counts[: group.rank]), held, None if everything else elements
    )
