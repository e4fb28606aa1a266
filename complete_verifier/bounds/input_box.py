"""A region's box as the engine takes it."""

from __future__ import annotations

import torch

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.specification import Region


def input_box(graph: Graph, region: Region) -> Interval:
    """The smallest box in the network's precision that contains the region's, ``[1, *shape]``."""
    if graph.precision == torch.float64:
        lower, upper = region.lower, region.upper
    else:
        lower, upper = region.float32_outer_box()
    shape = (1, *graph.input_shape)
    return Interval(
        torch.tensor(lower, dtype=graph.precision, device=graph.device).view(shape),
        torch.tensor(upper, dtype=graph.precision, device=graph.device).view(shape),
    )
