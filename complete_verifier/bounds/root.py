"""What bounds know of a region where branching starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
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
