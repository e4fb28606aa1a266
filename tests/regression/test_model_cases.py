"""Networks whose form once broke tools of this kind, from PyTorch to bounds and verdicts.

A failure means that one of them fails, or that a bound of it does not hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches import registry
from auto_LiRPA_patches.engine.options import AlphaOptions
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier import Specification, Verdict, Verifier
from complete_verifier.model.network import Network, load_network
from complete_verifier.model.torch_module import write_onnx
from tests.unit.engine import nets


def loaded(module: nn.Module, shape: tuple[int, ...], folder: Path) -> Network:
    registry.apply()
    write_onnx(module, shape, folder / "net.onnx", "net")
    return load_network(folder / "net.onnx", OneRankWeights())


def check_bounds(network: Network, box: Interval) -> tuple[Tensor, Tensor]:
    """CROWN's and α-CROWN's lower bounds of +-outputs, which hold at points of the box."""
    graph = network.graph
    matrix = nets.signed_outputs(graph)
    values = nets.outputs_of(graph, nets.points_of(box, 200))
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    _, crown = nets.crown(graph, box, matrix)
    alpha = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=5)).lower
    for lower in (crown, alpha):
        assert bool(torch.isfinite(lower).all())
        assert bool((lower <= smallest + 1e-5).all())
    assert bool((alpha >= crown - 1e-5).all())
    return crown, alpha


@pytest.mark.parametrize("seed", range(4))
def test_pooling_down_to_single_cells(seed: int, tmp_path: Path) -> None:
    """Case 21: windows that are padding for the most part."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(1, 2, 2, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 1, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    network = loaded(layers, (1, 2, 2), tmp_path)
    center = torch.zeros(1, 1, 2, 2)
    check_bounds(network, Interval(center - 1, center + 1))
    for _ in range(6):  # where little is left between bounds and values
        center = 0.3 * torch.randn(1, 1, 2, 2)
        check_bounds(network, Interval(center - 0.1, center + 0.1))


class ChannelsLast(nn.Module):
    """A convolution whose channels are moved behind height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.linear = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.conv(x)).permute(0, 2, 3, 1).flatten(1))


def test_bounds_find_the_channels_where_they_were_moved(tmp_path: Path) -> None:
    """Case 22, bounds alone; an axis mixed up with another gives those of another network."""
    torch.manual_seed(0)
    module, center = ChannelsLast(), torch.rand(1, 1, 4, 4)
    network = loaded(module, (1, 4, 4), tmp_path)
    for radius in (1e-3, 0.3):
        check_bounds(network, Interval(center - radius, center + radius))


@pytest.mark.parametrize("conv_mode", ["patches", "matrix"])
def test_channels_moved_behind_without_the_incomplete_stage(conv_mode: str) -> None:
    """Case 22."""
    torch.manual_seed(0)
    module, x = ChannelsLast(), torch.rand(1, 4, 4)
    label = int(module(x[None]).argmax())
    config = {
        "general": {
            "device": "cpu",
            "conv_mode": conv_mode,
            "enable_incomplete_verification": False,
        },
        "bab": {"timeout": 30},
    }
    with Verifier(config) as verifier:
        near = verifier.verify(module, Specification.linf(x, 1e-3, label))
        far = verifier.verify(module, Specification.linf(x, 3.0, label))
    assert (near.verdict, far.verdict) == (Verdict.UNSAT, Verdict.SAT)


class ProductOfInputs(nn.Module):
    """y = x0 x1."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * x[:, 1:]


def test_a_product_of_inputs(tmp_path: Path) -> None:
    """Case 25; McCormick's planes are at most 2 eps^2 from the product."""
    network = loaded(ProductOfInputs(), (2,), tmp_path)
    center = torch.tensor([[0.5, -0.3]])
    crown, _ = check_bounds(network, Interval(center - 0.1, center + 0.1))
    corners = [(0.5 + a) * (-0.3 + b) for a in (-0.1, 0.1) for b in (-0.1, 0.1)]
    assert float(crown[0, 0]) >= min(corners) - 0.02 - 1e-6
    assert float(-crown[1, 0]) <= max(corners) + 0.02 + 1e-6


class Clamped(nn.Module):
    """min(max(x, 0.5), 0.75), by both ways of writing it."""

    def __init__(self, by_clip: bool) -> None:
        super().__init__()
        self.by_clip = by_clip

    def forward(self, x: Tensor) -> Tensor:
        if self.by_clip:
            return x.clamp(0.5, 0.75)
        low, high = torch.tensor(0.5), torch.tensor(0.75)
        return torch.minimum(torch.maximum(x, low), high)


@pytest.mark.parametrize("by_clip", [True, False])
def test_a_value_between_two_limits(by_clip: bool, tmp_path: Path) -> None:
    """Case 26."""
    network = loaded(Clamped(by_clip), (1,), tmp_path)
    box = Interval(torch.zeros(1, 1), torch.ones(1, 1))
    check_bounds(network, box)
    image = network.graph.intervals(box)[network.graph.output]
    state, crown = nets.crown(network.graph, box, nets.signed_outputs(network.graph))
    assert float(image.lower) <= 0.5 and float(image.upper) >= 0.75
    del state
    lower = max(float(crown[0, 0]), float(image.lower))
    upper = min(float(-crown[1, 0]), float(image.upper))
    assert 0 <= lower <= 0.5 and 0.75 <= upper <= 1
