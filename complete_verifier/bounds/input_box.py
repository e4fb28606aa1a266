"""A region's box as the engine takes it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.ball import BallBox
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.specification import Region
from complete_verifier.specification.ball import Ball


def input_box(graph: Graph, region: Region) -> Interval:
    """The smallest box in the network's precision that contains the region's, ``[1, *shape]``.

    With the region's ball, where it has one.
    """
    if graph.precision == torch.float64:
        lower, upper = region.lower, region.upper
    else:
        lower, upper = region.float32_outer_box()
    low, high = _placed(graph, lower), _placed(graph, upper)
    if region.ball is None:
        return Interval(low, high)
    return _ball_box(graph, low, high, region.ball)


def _ball_box(graph: Graph, lower: Tensor, upper: Tensor, ball: Ball) -> BallBox:
    """A ball in the network's precision that contains `ball`: what rounding moves, it reaches."""
    middle, weights = _placed(graph, ball.center), _placed(graph, ball.weights)
    # A smaller weight is a larger ball.
    weights = weights * (1 - torch.finfo(graph.precision).eps)
    moved = np.abs(middle.cpu().numpy().astype(np.float64).reshape(-1) - ball.center)
    moved *= np.where(moved > 0, ball.weights, 0.0)
    reach = (ball.radius + float(np.linalg.norm(moved, ord=ball.norm))) * (1 + 1e-12)
    return BallBox(lower, upper, middle, weights, reach, ball.norm)


def _placed(graph: Graph, values: np.ndarray) -> Tensor:
    placed = torch.tensor(values, dtype=graph.precision, device=graph.device)
    return placed.view(1, *graph.input_shape)
