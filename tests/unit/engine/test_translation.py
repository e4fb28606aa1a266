"""Every form of every operator is translated to the same function of each row, or refused by name.

A failure means that another network is bounded than the one that was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions
from auto_LiRPA_patches.errors import UnsupportedOperatorError
from tests.unit.engine import nets


class Function(nn.Module):
    """A function of x and of constants c (3,), m (4, 3), s (), held as buffers."""

    c: Tensor
    m: Tensor
    s: Tensor

    def __init__(self, function: Callable[[Function, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("c", torch.tensor([1.5, -0.5, 2.0]))
        self.register_buffer("m", torch.linspace(-1, 1, 12).view(4, 3))
        self.register_buffer("s", torch.tensor(3.0))
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(4)
        self.conv = nn.Conv1d(4, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


SUPPORTED: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "slice": lambda f, x: x[:, 1:3],
    "slice-negative": lambda f, x: x[:, -2:],
    "slice-beyond-the-end": lambda f, x: x[:, 2:100],
    "slice-last-axis": lambda f, x: x[..., 0:2],
    "slice-two-axes": lambda f, x: x[:, 1:3, 1:],
    "index": lambda f, x: x[:, 1],
    "index-to-a-number": lambda f, x: x[:, 1, 2] * 2 + x[:, 0, 0],
    "stack": lambda f, x: torch.stack([x[:, 0], x[:, 2]], dim=2),
    "cat-negative-axis": lambda f, x: torch.cat([x, x * 2], dim=-1),
    "transpose": lambda f, x: x.transpose(1, 2),
    "permute": lambda f, x: x.unsqueeze(1).permute(0, 3, 1, 2),
    "view": lambda f, x: x.view(x.shape[0], 2, 6),
    "view-minus-one": lambda f, x: x.view(-1, 12),
    "flatten": lambda f, x: x.flatten(1),
    "flatten-middle": lambda f, x: x.unsqueeze(1).flatten(1, 2),
    "squeeze": lambda f, x: x[:, :1].squeeze(1),
    "unsqueeze": lambda f, x: x.unsqueeze(-1),
    "add-nothing": lambda f, x: f.linear((x - 0 * f.c).flatten(0, 1).view(-1, 4, 3)),
    "add-nothing-but-an-axis": lambda f, x: x.unsqueeze(1) + torch.zeros(1, 2, 4, 3),
    "add-nothing-last": lambda f, x: f.linear(x) + 0 * f.c,
    "add-nothing-at-all": lambda f, x: x + 0 * f.c,
    "add-constant": lambda f, x: x + f.c,
    "constant-add": lambda f, x: f.m + x,
    "subtract-constant": lambda f, x: x - f.c,
    "constant-subtract": lambda f, x: f.c - x,
    "multiply-constant": lambda f, x: x * f.m,
    "constant-multiply": lambda f, x: f.s * x,
    "divide-constant": lambda f, x: x / f.c,
    "divide-number": lambda f, x: x / 4,
    "negate": lambda f, x: -x,
    "constant-with-batch-axis": lambda f, x: x + f.m.unsqueeze(0),
    "sum-of-values": lambda f, x: x + x[:, :1] - x[:, :, :1],
    "sum-widens-a-rank": lambda f, x: x + x[:, 0].unsqueeze(1),
    "outer-sum": lambda f, x: x[:, 0].unsqueeze(2) + x[:, 1].unsqueeze(1),
    "difference-of-itself": lambda f, x: x - x,
    "product-of-values": lambda f, x: x * x[:, :1],
    "square": lambda f, x: x * x,
    "linear-leading-axis": lambda f, x: f.linear(x),
    "matmul-constant": lambda f, x: x @ f.m.T,
    "batch-norm-channels": lambda f, x: f.norm(x),
    "dropout": lambda f, x: F.dropout(x, 0.5, training=False) * 2,
    "activations": lambda f, x: torch.relu(x) + torch.sigmoid(x) * torch.tanh(x),
    "one-value-used-twice": lambda f, x: f.linear(torch.relu(x)) + torch.relu(x),
    "slice-step": lambda f, x: x[:, ::2],
    "index-negative": lambda f, x: x[:, -1],
    "index-last-axis": lambda f, x: x[:, :, -2],
    "split": lambda f, x: torch.cat(torch.split(x, 2, dim=1)[::-1], dim=2),
    "chunk": lambda f, x: x.chunk(2, dim=1)[1],
    "conv1d": lambda f, x: f.conv(x),
    "reverse": lambda f, x: x.flip(1),
    "mean": lambda f, x: x.mean(1),
    "sum-over-an-axis": lambda f, x: x.sum(1),
    "power": lambda f, x: x**2,
    "exponential": lambda f, x: torch.exp(x),
    "softmax": lambda f, x: torch.softmax(x, 1),
    "widened-by-a-constant": lambda f, x: x.unsqueeze(1) + torch.ones(1, 2, 1, 1),
    "gather-matrix": lambda f, x: x[:, torch.tensor([[0, 1], [2, 3]])],
    "value-times-value": lambda f, x: x @ x.transpose(1, 2),
    "mean-of-two-axes": lambda f, x: x.mean((1, 2)),
    "mean-keeping-the-axis": lambda f, x: x - x.mean(1, keepdim=True),
    "cube": lambda f, x: x**3,
    "to-the-power-of-zero": lambda f, x: x**0 + f.c,
    "powers-of-two": lambda f, x: 2.0**x,
    "powers-of-less-than-one": lambda f, x: torch.pow(0.3, x),
    "each-its-own-exponent": lambda f, x: torch.pow(x, torch.tensor([2.0, 3.0, 0.0])),
    "reciprocal": lambda f, x: torch.reciprocal(x**2 + 1),
    "quotient": lambda f, x: x / (1 + torch.exp(x[:, :1])),
    "logarithm": lambda f, x: torch.log(torch.exp(x) + 1),
    "root": lambda f, x: torch.sqrt(x**2 + 0.25),
    "sine-and-cosine": lambda f, x: torch.sin(3 * x) * torch.cos(x),
    "layer-norm": lambda f, x: F.layer_norm(x, (3,)),
    "attention": lambda f, x: torch.softmax(x @ x.transpose(1, 2), -1) @ f.linear(x),
    "cat-constant": lambda f, x: torch.cat([f.m[None, :1], x], dim=1),
    "conv-transpose": lambda f, x: F.conv_transpose1d(x, f.conv.weight.transpose(0, 1), stride=2),
}

OTHER: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "constant-times-value": lambda f, x: f.m @ x.transpose(1, 2),
    "constant-divided": lambda f, x: f.c / x,
    "value-to-a-value": lambda f, x: torch.pow(x, x),
    "powers-of-a-negative": lambda f, x: torch.pow(torch.tensor(-2.0), x),
    "divide-by-zero": lambda f, x: x / (f.c * 0),
    "max": lambda f, x: x.max(1).values,
    "max-pool": lambda f, x: F.max_pool1d(x, 2),
    "average-pool": lambda f, x: F.avg_pool1d(x, 2),
    "square-root": lambda f, x: torch.sqrt(x),
    "absolute": lambda f, x: x.abs(),
    "leaky-relu": lambda f, x: F.leaky_relu(x),
    "elu": lambda f, x: F.elu(x),
    "clamp": lambda f, x: x.clamp(-0.5, 0.5),
    "reflect-pad": lambda f, x: F.pad(x, (1, 1), mode="reflect"),
    "constant-pad": lambda f, x: F.pad(x, (1, 0), value=0.5),
    "batch-as-an-axis": lambda f, x: x + x.sum(0, keepdim=True),
    "flattened-with-the-batch": lambda f, x: x.reshape(-1),
    "batch-moved": lambda f, x: x.transpose(0, 1),
    "repeat": lambda f, x: x.repeat(1, 2, 1),
    "expand": lambda f, x: x[:, :1].expand(-1, 4, -1) + x,
    "where": lambda f, x: torch.where(x > 0, x, 2 * x),
}


def graph_of(function: Callable[[Function, Tensor], Tensor]) -> tuple[nn.Module, nets.Graph]:
    torch.manual_seed(130)
    module = Function(function).eval()
    with torch.no_grad():
        for statistic in (module.norm.running_mean, module.norm.running_var):
            if statistic is not None:
                statistic.uniform_(0.5, 2.0)
    return module, nets.graph_of(module, (4, 3))


def assert_same_function_and_sound(module: nn.Module, graph: nets.Graph) -> None:
    box = nets.boxes((4, 3), 3, 0.5)
    points = nets.points_of(box, 60)
    module = module.double()
    values = nets.outputs_of(graph, points)
    alone = [module(x.unsqueeze(0)).flatten() for x in points.flatten(0, 1)]
    torch.testing.assert_close(
        values.flatten(0, 1), torch.stack(alone), rtol=1e-6, atol=1e-6, equal_nan=True
    )
    matrix = nets.signed_outputs(graph)
    lower = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=1)).lower
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    # Where the function is not defined all over a box, its bound is not finite.
    assert bool(((lower <= smallest + 1e-6) | smallest.isnan()).all())


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_form_is_the_same_function_of_each_row(name: str) -> None:
    assert_same_function_and_sound(*graph_of(SUPPORTED[name]))


@pytest.mark.parametrize("name", OTHER)
def test_any_other_form_is_refused_by_name_or_right(name: str) -> None:
    try:
        module, graph = graph_of(OTHER[name])
    except UnsupportedOperatorError as error:
        assert re.match(r'node "[^"]+"|the network', str(error)), str(error)
        return
    assert_same_function_and_sound(module, graph)


def test_a_shift_by_zero_is_no_node() -> None:
    _, plain = graph_of(lambda f, x: torch.relu(f.linear(x)))
    for shift in (lambda x, zero: x - zero, lambda x, zero: x + zero, lambda x, zero: zero + x):
        _, shifted = graph_of(lambda f, x, shift=shift: torch.relu(f.linear(shift(x, 0 * f.c))))
        assert len(shifted.nodes) == len(plain.nodes)
    _, opposite = graph_of(lambda f, x: torch.relu(f.linear(0 * f.c - x)))
    assert len(opposite.nodes) == len(plain.nodes) + 1
    _, moved = graph_of(lambda f, x: torch.relu(f.linear(x - f.c)))
    assert len(moved.nodes) == len(plain.nodes) + 1
