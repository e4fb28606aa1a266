"""What bounds know of a region where branching starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.inactive import without_inactive
from auto_LiRPA_patches.engine.inner_bounds import InnerRows
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bounds.output_rows import OutputRows


@dataclass(frozen=True, eq=False)
class Root:
    """Bounds of a region that left some clause open.

    Attributes:
        graph: the network.
        box: ``[1, *input_shape]``.
        features: per activation, the elements it relaxes; None = all.
        bounds: per bounded node ``[1, *shape]``.
        alphas: per activation ``[K, S, 1, F]``, S the functionals of `rows`; CROWN's own slopes
            where α was not optimised.
        rows: the functionals and the clauses that use them.
        lower: ``[S]`` float64 lower bounds, `slack` taken off.
        slack: ``[S]`` float64, what rounding may account for.
        excluded: ``[num_clauses]`` clauses that are impossible already.
        inner: neurons that subproblems bound anew; empty where they do not.
    """

    graph: Graph
    box: Interval
    features: Mapping[int, Tensor | None]
    bounds: Mapping[int, Interval]
    alphas: Mapping[int, Tensor]
    rows: OutputRows
    lower: np.ndarray
    slack: np.ndarray
    excluded: np.ndarray
    inner: tuple[InnerRows, ...] = ()

    def without_inactive(self) -> Root:
        """The same of a network without the neurons that are inactive over the box.

        The neurons left of a narrowed layer all become features; a stable one's α has no effect.
        """
        narrow = without_inactive(self.graph, self.bounds)
        features, bounds, alphas = dict(self.features), dict(self.bounds), dict(self.alphas)
        for index, kept in narrow.kept.items():
            if index in bounds:
                own = bounds[index]
                bounds[index] = Interval(own.lower[:, kept], own.upper[:, kept])
            if index in alphas:
                width = self.graph.nodes[index].shape[0]
                alphas[index] = _whole(alphas[index], features.get(index), width)[..., kept]
                features[index] = None
        return replace(
            self,
            graph=narrow.graph,
            features=features,
            bounds=bounds,
            alphas=alphas,
            inner=tuple(self._narrow_rows(rows, narrow.kept) for rows in self.inner),
        )

    def _narrow_rows(self, rows: InnerRows, kept: Mapping[int, Tensor]) -> InnerRows:
        """The rows of neurons that are left, with α of neurons that are left."""
        if rows.node in kept:
            left = kept[rows.node]
            rows = rows.select(torch.isin(rows.elements, left).nonzero().squeeze(1))
            rows = replace(rows, elements=torch.searchsorted(left, rows.elements))
        alphas = dict(rows.alphas)
        for index in alphas.keys() & kept.keys():
            width = self.graph.nodes[index].shape[0]
            whole = _whole(alphas[index], self.features.get(index), width)
            alphas[index] = whole[..., kept[index]]
        return replace(rows, alphas=alphas)


def _whole(alpha: Tensor, features: Tensor | None, width: int) -> Tensor:
    """``[K, S, 1, F]`` at `features` as ``[K, S, 1, width]``, one elsewhere."""
    if features is None:
        return alpha
    return alpha.new_ones(*alpha.shape[:-1], width).index_copy_(-1, features, alpha)
