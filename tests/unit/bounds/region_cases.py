"""Networks made from torch modules, and regions over them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region


def network_of(
    module: nn.Module, shape: tuple[int, ...], precision: torch.dtype = torch.float32
) -> Network:
    """The network that a module is, as if it had been read from a file."""
    bounded = build_bounded_module(module, torch.zeros(1, *shape))
    graph = build_graph(bounded, OneRankWeights(), BuildOptions(precision=precision))
    return Network(
        graph=graph,
        input_shape=shape,
        num_inputs=math.prod(shape),
        num_outputs=math.prod(graph.output_shape),
        onnx_path=None,
        onnx_input_shape=(1, *shape),
    )


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    """One layer with given numbers."""
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def at_most(row: list[float], rhs: float, strict: bool = False) -> Clause:
    """The clause ``row . y <= rhs`` (or ``<``)."""
    return Clause(np.array([row]), np.array([rhs]), np.array([strict]))


def region(lower: list[float], upper: list[float], *clauses: Clause) -> Region:
    return Region(np.array(lower), np.array(upper), clauses)


def samples(where: Region, count: int) -> np.ndarray:
    """Float64 corners and inner points ``[count, I]``."""
    generator = np.random.default_rng(0)
    share = generator.random((count, where.num_inputs))
    share[: count // 2] = np.round(share[: count // 2])
    return where.lower + share * (where.upper - where.lower)


def outputs(network: Network, points: np.ndarray) -> np.ndarray:
    """``[count, O]`` in the network's precision, as float64."""
    with torch.no_grad():
        return network.forward(torch.from_numpy(points)).double().numpy()
