"""The α optimisation: it moves, it never loosens, it stops when it should.

A failure means that α-CROWN returns CROWN's bounds without a word, or bounds it cannot reproduce.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.alpha import AlphaResult
from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.schedule import crown_relaxations
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.relu import Relu
from tests.unit.engine import nets

ACTIVATED = ["mlp", "deep", "sigmoid", "tanh", "conv", "residual", "product", "mixed"]


def problem(name: str, seed: int = 50, batch: int = 1) -> tuple[Graph, Interval, Tensor]:
    module, shape = nets.make(name, seed)
    graph = nets.graph_of(module, shape)
    return graph, nets.boxes(shape, batch, 1.5), nets.signed_outputs(graph)


def improvement(graph: Graph, box: Interval, matrix: Tensor, iterations: int = 10) -> Tensor:
    """How much α-CROWN gains on CROWN, ``[S, B]``."""
    _, lower = nets.crown(graph, box, matrix)
    return nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=iterations)).lower - lower


class _ClampWithoutGradientAtItsLimits(torch.autograd.Function):
    """torch 2.14's clamp to [0, 1], on every torch."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor) -> Tensor:
        ctx.save_for_backward((alpha > 0) & (alpha < 1))
        return alpha.clamp(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside


@pytest.mark.parametrize("name", ACTIVATED)
def test_alpha_crown_improves_on_crown(name: str) -> None:
    assert float(improvement(*problem(name)).max()) > 1e-2


def test_alpha_clamped_inside_the_graph_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """α starts at exactly 0 or 1; clamped in the graph it never leaves, and nothing improves."""
    own_lines = Relu.lines

    def clamped(self: Relu, relaxation: Any, alpha: Tensor | None) -> Any:
        if alpha is not None:
            alpha = _ClampWithoutGradientAtItsLimits.apply(alpha)
        return own_lines(self, relaxation, alpha)

    graph, box, matrix = problem("mlp")
    assert float(improvement(graph, box, matrix).max()) > 1e-2
    monkeypatch.setattr(Relu, "lines", clamped)
    assert float(improvement(graph, box, matrix).abs().max()) < 1e-9


@pytest.mark.parametrize("name", ACTIVATED)
@pytest.mark.parametrize("seed", [51, 52])
def test_no_row_is_looser_than_crowns(name: str, seed: int) -> None:
    gained = improvement(*problem(name, seed, batch=2), iterations=8)
    assert float(gained.min()) >= -1e-12


def test_alphas_stay_between_zero_and_one() -> None:
    graph, box, matrix = problem("residual")
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=15, learning_rate=0.7))
    assert result.alphas
    for alpha in result.alphas.values():
        assert float(alpha.min()) >= 0
        assert float(alpha.max()) <= 1
        assert bool(((alpha > 0) & (alpha < 1)).any())


def bounds_of(
    graph: Graph,
    box: Interval,
    matrix: Tensor,
    features: dict[int, Tensor | None],
    bounds: dict[int, Interval],
    alphas: dict[int, Tensor],
) -> Tensor:
    state = Relaxations(graph, box, features)
    for node in graph.bounded:
        state.set_bounds(node, bounds[node])
    rows = nets.spec_rows(graph, matrix)
    with torch.no_grad():
        return lower_bounds(
            graph, box, graph.output, rows, lambda index: state.lines(index, alphas)
        )


@pytest.mark.parametrize("name", ACTIVATED)
def test_the_returned_alphas_reproduce_the_bounds(name: str) -> None:
    """Over fixed intermediate bounds, where the best bound of each row belongs to its α."""
    graph, box, matrix = problem(name, batch=2)
    options = BoundOptions(intermediate="ibp")
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=10), options)
    features = dict(crown_relaxations(graph, box, options).features)
    again = bounds_of(graph, box, matrix, features, result.bounds, result.alphas)
    torch.testing.assert_close(again, result.lower, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ACTIVATED)
def test_the_returned_alphas_are_sound_over_the_returned_bounds(name: str) -> None:
    graph, box, matrix = problem(name, batch=2)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=10))
    features = dict(crown_relaxations(graph, box, BoundOptions()).features)
    again = bounds_of(graph, box, matrix, features, result.bounds, result.alphas)
    assert bool((again <= result.lower + 1e-12).all())
    values = nets.outputs_of(graph, nets.points_of(box, 500))
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    assert bool((result.lower <= smallest + 1e-9).all())


def run(open_after: int, **options: Any) -> tuple[AlphaResult, int]:
    """Optimise with rows that close at the `open_after`-th evaluation; count evaluations."""
    graph, box, matrix = problem("mlp")
    asked = 0

    def open_rows(lower: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        return torch.full_like(lower, asked < open_after, dtype=torch.bool)

    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(**options), open_rows=open_rows)
    return result, asked


def test_it_stops_as_soon_as_no_row_is_open() -> None:
    result, asked = run(open_after=3, iterations=20)
    assert (result.iterations, asked) == (2, 3)
    assert not result.timed_out


def test_it_does_not_step_at_all_where_nothing_is_open() -> None:
    result, _ = run(open_after=1, iterations=20)
    assert result.iterations == 0


def test_without_early_stop_it_takes_every_step() -> None:
    result, asked = run(open_after=1, iterations=7, early_stop=False)
    assert (result.iterations, asked) == (7, 8)


def test_patience_ends_a_run_that_gains_nothing() -> None:
    """A learning rate of zero: the first evaluation is the best there will be."""
    result, _ = run(open_after=1000, iterations=50, learning_rate=0.0, patience=4)
    assert result.iterations == 5


def test_only_open_rows_are_improved() -> None:
    """One row of two is open; its α moves, the other's stays at CROWN's slopes."""
    graph, box, matrix = problem("mlp")
    matrix = matrix[:2]
    options = BoundOptions(intermediate="ibp")
    _, lower = nets.crown(graph, box, matrix, options)
    result = nets.alpha_crown(
        graph,
        box,
        matrix,
        AlphaOptions(iterations=10),
        options,
        open_rows=lambda bounds: torch.tensor([[True], [False]]),
    )
    assert float(result.lower[0] - lower[0]) > 1e-3
    assert float((result.lower[1] - lower[1]).abs()) < 1e-12
    state = crown_relaxations(graph, box, options)
    for index, alpha in result.alphas.items():
        found = state.activation(index)
        assert found is not None
        assert torch.equal(alpha[:, 1], found[0].initial_alpha(found[1]))


@pytest.mark.parametrize("allowed", [0, 1, 4, 15])
def test_running_out_of_time_keeps_sound_bounds(allowed: int) -> None:
    graph, box, matrix = problem("residual", batch=2)
    _, lower = nets.crown(graph, box, matrix)
    asked = 0

    def out_of_time(*_: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > crown_asks + allowed

    tally: list[int] = []

    def count(*_: float) -> bool:
        tally.append(0)
        return False

    crown_relaxations(graph, box, BoundOptions(out_of_time=count))
    crown_asks = len(tally)
    result = nets.alpha_crown(
        graph, box, matrix, AlphaOptions(iterations=20), BoundOptions(out_of_time=out_of_time)
    )
    assert result.timed_out
    # Asked before every chunk and every step, so at least twice per step.
    assert result.iterations <= allowed // 2
    assert (result.iterations > 0) == (allowed >= 4)
    assert bool((result.lower >= lower - 1e-12).all())
    values = nets.outputs_of(graph, nets.points_of(box, 500))
    smallest = torch.einsum("so,pbo->psb", matrix, values).amin(0)
    assert bool((result.lower <= smallest + 1e-9).all())


def test_finishing_in_time_is_not_called_timed_out() -> None:
    graph, box, matrix = problem("mlp")
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2))
    assert not result.timed_out
    assert result.iterations == 2


def test_progress_is_told_after_every_step() -> None:
    told: list[str] = []
    graph, box, matrix = problem("mlp")
    options = BoundOptions(progress=told.append)
    nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3), options)
    assert sum("α-CROWN iteration" in line for line in told) == 3


def test_a_net_without_unstable_neurons_has_no_alpha_to_move() -> None:
    module = nets.mlp(3, 4, 2)
    with torch.no_grad():
        nets.layer(module, 0).bias.fill_(50.0)
    graph = nets.graph_of(module, (3,))
    box, matrix = nets.boxes((3,), 2, 1.0), nets.signed_outputs(graph)
    _, lower = nets.crown(graph, box, matrix)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=3))
    assert torch.equal(result.lower, lower)
    assert not result.alphas
