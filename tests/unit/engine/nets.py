"""Small networks as torch modules, their graphs, and shorthands for bounding them.

Shape letters: P points, S rows, B boxes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.alpha import AlphaResult, optimize_alpha
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations
from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.weights import WeightSource


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def layer(net: nn.Sequential, index: int) -> nn.Linear:
    """The Linear layer at a place of a sequence."""
    found = net[index]
    assert isinstance(found, nn.Linear)
    return found


def conv_net() -> nn.Sequential:
    """Strided, padded and dilated convolutions with BatchNorm; input (2, 6, 5)."""
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight.normal_()
        for statistic, fill in ((norm.running_mean, 0.7), (norm.running_var, 1.4)):
            if statistic is not None:
                statistic.copy_(fill * (0.5 + torch.rand(4)))
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        norm,
        nn.ReLU(),
        nn.Conv2d(4, 3, 2, dilation=(1, 2), padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 4 * 3, 3),
    )


class Residual(nn.Module):
    """Two branches added, one of them a shortcut; input (4,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 6), nn.Linear(6, 6)
        self.outer, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = torch.relu(self.outer(torch.relu(self.inner(h))) + h)
        return self.last(h) - h[:, :3]


class Product(nn.Module):
    """A gate: two computed values multiplied; input (3,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.value = nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(5, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(torch.sigmoid(self.gate(h)) * self.value(h) + 0.125))


class Mixed(nn.Module):
    """Slices, a concatenation, a transpose, constants on both sides; input (2, 3)."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.joined = nn.Linear(2, 4), nn.Linear(16, 5)
        self.last = nn.Linear(5, 2)
        self.register_buffer("shift", torch.randn(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        columns = (x.transpose(1, 2) - self.shift) / 1.5
        h = torch.tanh(self.rows(columns))
        picked = torch.cat([h[:, 0], 1 - h[:, 1], torch.relu(h[:, 2]), h[:, 1]], dim=1)
        return -self.last(torch.relu(self.joined(picked)))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(4, 8, 6, 3), (4,)),
    "deep": (lambda: mlp(3, 6, 6, 6, 6, 2), (3,)),
    "sigmoid": (lambda: mlp(4, 6, 5, 3, activation=nn.Sigmoid), (4,)),
    "tanh": (lambda: mlp(4, 6, 5, 3, activation=nn.Tanh), (4,)),
    "conv": (conv_net, (2, 6, 5)),
    "residual": (Residual, (4,)),
    "product": (Product, (3,)),
    "mixed": (Mixed, (2, 3)),
}


def make(name: str, seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """One of `NETS` with seeded weights, larger than torch's so that neurons are unstable."""
    torch.manual_seed(seed)
    build, shape = NETS[name]
    module = build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    return module, shape


def graph_of(
    module: nn.Module,
    shape: tuple[int, ...],
    precision: torch.dtype = torch.float64,
    weights: WeightSource | None = None,
    lower_slope: str = "adaptive",
) -> Graph:
    """The engine's graph of a float32 module."""
    bounded = build_bounded_module(module, torch.zeros(1, *shape))
    options = BuildOptions(precision=precision, relu_lower_slope=lower_slope)
    return build_graph(bounded, weights or OneRankWeights(), options)


def boxes(
    shape: tuple[int, ...], batch: int, radius: float, precision: torch.dtype = torch.float64
) -> Interval:
    """Random boxes ``[B, *shape]`` of different sizes, a tenth of the inputs fixed."""
    center = torch.randn(batch, *shape, dtype=precision)
    share = torch.rand(batch, *shape, dtype=precision)
    share = torch.where(share < 0.1, torch.zeros_like(share), share)
    return Interval(center - radius * share, center + radius * share)


def points_of(box: Interval, count: int) -> Tensor:
    """``[P, B, *shape]``: corners and inner points of every box."""
    share = torch.rand(count, *box.lower.shape, dtype=box.lower.dtype)
    share[: count // 2] = share[: count // 2].round()
    return box.lower + share * (box.upper - box.lower)


def outputs_of(graph: Graph, points: Tensor) -> Tensor:
    """``[P, B, O]`` for points ``[P, B, *shape]``."""
    return graph.forward(points.flatten(0, 1)).unflatten(0, points.shape[:2]).flatten(2)


def spec_rows(graph: Graph, matrix: Tensor) -> SpecRows:
    """Functionals ``[S, O]`` of the flat output."""
    return SpecRows(matrix.view(-1, *graph.output_shape))


def signed_outputs(graph: Graph) -> Tensor:
    """``[2 O, O]``: each output, and minus each output."""
    eye = torch.eye(int(torch.tensor(graph.output_shape).prod()), dtype=graph.precision)
    return torch.cat([eye, -eye])


def crown(
    graph: Graph, box: Interval, matrix: Tensor, options: BoundOptions | None = None
) -> tuple[Relaxations, Tensor]:
    """CROWN's relaxations, and lower bounds ``[S, B]`` of the functionals ``[S, O]``."""
    options = options or BoundOptions()
    state = crown_relaxations(graph, box, options)
    return state, crown_bounds(state, spec_rows(graph, matrix), options)


def everything_open(lower: Tensor) -> Tensor:
    """Every row is worth improving."""
    return torch.ones_like(lower, dtype=torch.bool)


def alpha_crown(
    graph: Graph,
    box: Interval,
    matrix: Tensor,
    alpha: AlphaOptions,
    options: BoundOptions | None = None,
    open_rows: Callable[[Tensor], Tensor] = everything_open,
) -> AlphaResult:
    """α-CROWN of the functionals ``[S, O]``."""
    options = options or BoundOptions()
    state = crown_relaxations(graph, box, options)
    return optimize_alpha(state, spec_rows(graph, matrix), open_rows, options, alpha)
