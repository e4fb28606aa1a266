"""Numbers that overflow, bounds that are no numbers or cross: none of it proves anything.

A failure means a proof from garbage.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.schedule import crown_relaxations, interval_rows
from auto_LiRPA_patches.errors import NonFiniteBoundError, SoundnessError
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


def chain(weight: float, depth: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Layers of two neurons with weights of one size and mixed signs."""
    torch.manual_seed(100)
    net = nets.mlp(*[2] * (depth + 1), activation=activation)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) * weight)
    return net


def lower_or_none(module: nn.Module, matrix: Tensor, iterations: int) -> Tensor | None:
    """Bounds over [-1, 1]^2 in float32, or None where they are refused."""
    graph = nets.graph_of(module, (2,), torch.float32)
    box = Interval(-torch.ones(1, 2), torch.ones(1, 2))
    try:
        return nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=iterations)).lower
    except NonFiniteBoundError:
        return None


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("weight", [1e10, 1e20, 2e38])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("iterations", [0, 3])
def test_huge_weights_never_give_a_finite_bound_above_a_value(
    activation: type[nn.Module], weight: float, depth: int, iterations: int
) -> None:
    """Values by float64, where nothing overflows; comparable up to float32 rounding."""
    module = chain(weight, depth, activation)
    matrix = torch.cat([torch.eye(2), -torch.eye(2)])
    lower = lower_or_none(module, matrix, iterations)
    if lower is None:
        return
    points = torch.rand(2000, 2).double() * 2 - 1
    values = module.double()(points) @ matrix.T.double()
    smallest = values.amin(0)
    finite = torch.isfinite(lower[:, 0])
    slack = 1e-5 * values.abs().amax(0)
    assert bool((lower[:, 0].double() <= smallest + slack)[finite].all())


def test_a_chord_over_the_whole_number_format_is_no_proof() -> None:
    """-relu(2e38 x) over [-1, 1] is as small as -2e38; u - l overflows on the way."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        nets.layer(net, 0).weight.fill_(2e38)
        nets.layer(net, 2).weight.fill_(-1.0)
    graph = nets.graph_of(net, (1,), torch.float32)
    box = Interval(-torch.ones(1, 1), torch.ones(1, 1))
    _, lower = nets.crown(graph, box, torch.ones(1, 1))
    assert not float(lower) > -1.9e38


@pytest.mark.parametrize("bad", ["lower nan", "upper nan", "lower +inf", "upper -inf"])
def test_bounds_that_are_no_numbers_are_refused_by_name(bad: str) -> None:
    lower, upper = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]])
    side = lower if bad.startswith("lower") else upper
    side[0, 1] = float(bad.split()[1])
    with pytest.raises(NonFiniteBoundError, match="^layer 3: "):
        Interval(lower, upper).require_sound("layer 3")


def test_infinite_bounds_on_their_own_side_are_sound() -> None:
    box = Interval(torch.tensor([[-torch.inf, 0.0]]), torch.tensor([[0.0, torch.inf]]))
    assert box.require_sound("layer") is box


EXTREMES = (-math.inf, -1e38, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3e38, math.inf, math.nan)


@pytest.mark.parametrize(("low", "high"), list(product(EXTREMES, repeat=2)))
def test_every_pair_of_extremes_is_judged_by_what_it_is(low: float, high: float) -> None:
    """One number is looked at for most; it must let no other pair through."""
    lower, upper = torch.tensor([0.0, low]), torch.tensor([1.0, high])
    box = Interval(lower, upper)
    if math.isnan(low) or math.isnan(high) or low == math.inf or high == -math.inf:
        with pytest.raises(NonFiniteBoundError):
            box.require_sound("layer")
    elif low <= high:
        assert box.require_sound("layer") is box
    elif low - high > 1e-3 * max(abs(low), abs(high)) + 1e-5:
        with pytest.raises(SoundnessError):
            box.require_sound("layer")
    else:
        sound = box.require_sound("layer")
        assert float(sound.lower[1]) == float(upper[1]) < float(lower[1]) == float(sound.upper[1])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_crossed_bounds_are_refused(scale: float) -> None:
    lower, upper = torch.tensor([[1.0 * scale, -1.0]]), torch.tensor([[-1.0 * scale, 1.0]])
    with pytest.raises(SoundnessError, match="1 lower bounds exceed"):
        Interval(lower, upper).require_sound("layer 3")


def test_bounds_that_cross_by_rounding_change_places() -> None:
    lower = torch.tensor([[1.0, 1.0, -2.0]], requires_grad=True)
    upper = torch.tensor([[1.0 - 1e-6, 2.0, -2.0]], requires_grad=True)
    box = Interval(lower, upper).require_sound("layer")
    assert torch.equal(box.lower, torch.tensor([[1.0 - 1e-6, 1.0, -2.0]]))
    assert torch.equal(box.upper, torch.tensor([[1.0, 2.0, -2.0]]))
    box.lower.sum().backward()
    assert upper.grad is not None
    assert upper.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_the_tighter_side_is_taken_and_nan_never_wins() -> None:
    own = Interval(torch.tensor([[0.0, 2.0, torch.nan]]), torch.tensor([[torch.nan, 3.0, 9.0]]))
    other = Interval(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[5.0, 5.0, 5.0]]))
    both = own.intersect(other)
    assert both.lower.tolist() == [[1.0, 2.0, 1.0]]
    assert both.upper.tolist() == [[5.0, 3.0, 5.0]]


def test_nan_in_the_reference_is_not_hidden_by_an_intersection() -> None:
    own = Interval(torch.zeros(1, 1), torch.ones(1, 1))
    nan = Interval(torch.full((1, 1), torch.nan), torch.full((1, 1), torch.nan))
    with pytest.raises(NonFiniteBoundError):
        own.intersect(nan).require_sound("layer")


def test_known_bounds_that_contradict_the_computed_ones_are_refused() -> None:
    module, shape = nets.make("mlp", seed=101)
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 1, 0.5)
    node = graph.bounded[0]
    far = graph.intervals(box)[node].upper + 10
    with pytest.raises(SoundnessError, match=graph.nodes[node].name):
        crown_relaxations(graph, box, BoundOptions(), {node: Interval(far, far + 1)})


def test_known_bounds_tighten_what_is_computed() -> None:
    module, shape = nets.make("mlp", seed=102)
    graph = nets.graph_of(module, shape)
    box, matrix = nets.boxes(shape, 1, 1.0), nets.signed_outputs(graph)
    best = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=20)).bounds
    loose = crown_relaxations(graph, box, BoundOptions())
    tight = crown_relaxations(graph, box, BoundOptions(), best)
    gained = 0.0
    for node in graph.bounded:
        assert bool((tight.bounds[node].lower >= best[node].lower).all())
        gained += float((tight.bounds[node].lower - loose.bounds[node].lower).sum())
    assert gained > 1e-3
    points = nets.points_of(box, 500)
    values = nets.outputs_of(graph, points)
    _, lower = nets.crown(graph, box, matrix)
    assert bool((lower[:, 0] <= torch.einsum("so,pbo->psb", matrix, values).amin(0)[:, 0]).all())


def cancelling_offsets() -> nn.Sequential:
    """y = x, by offsets of 3e38 that a backward pass adds up before it takes them off again."""
    layers = [nn.Linear(1, 1) for _ in range(4)]
    with torch.no_grad():
        for layer, offset in zip(layers, (-3e38, -3e38, 3e38, 3e38), strict=True):
            layer.weight.fill_(1.0)
            layer.bias.fill_(offset)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("relu_first", [False, True])
def test_a_sum_that_overflows_upwards_is_no_lower_bound(relu_first: bool) -> None:
    """The backward pass meets 3e38 + 3e38 first; y takes -1, so +inf would be a false proof."""
    net = cancelling_offsets()
    if relu_first:
        net = nn.Sequential(nn.ReLU(), *net)
    graph = nets.graph_of(net, (1,), torch.float32)
    box = Interval(-torch.ones(1, 1), torch.ones(1, 1))
    matrix = torch.ones(1, 1)
    _, lower = nets.crown(graph, box, matrix)
    assert not float(lower) > 0
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2))
    assert not float(result.lower) > 0
    state = crown_relaxations(graph, box, BoundOptions())
    try:
        by_interval = interval_rows(state, nets.spec_rows(graph, matrix))
    except NonFiniteBoundError:
        return
    assert not float(by_interval) > 0
