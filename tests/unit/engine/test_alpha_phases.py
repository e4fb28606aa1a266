"""α in two phases, the specification's own first; and the end where steps gain little.

A failure means that the cheap phase spoils what the joint one finds, or that it is paid for twice.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine import alpha
from auto_LiRPA_patches.engine.alpha import AlphaResult
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


def problem(name: str = "deep") -> tuple[Graph, Interval, Tensor]:
    module, shape = nets.make(name, 50)
    graph = nets.graph_of(module, shape)
    return graph, nets.boxes(shape, 1, 1.5), nets.signed_outputs(graph)


def solve(problem: tuple[Graph, Interval, Tensor], **options: float) -> AlphaResult:
    chosen = AlphaOptions(**options)  # type: ignore[arg-type]
    return nets.alpha_crown(*problem, chosen)


@pytest.mark.parametrize("name", ["deep", "conv", "residual", "sigmoid"])
def test_both_phases_give_sound_bounds_at_least_as_tight_as_the_first(name: str) -> None:
    case = graph, box, matrix = problem(name)
    first = solve(case, iterations=0, final_first=8)
    both = solve(case, iterations=8, final_first=8)
    assert (first.iterations, both.iterations) == (8, 16)
    assert float((both.lower - first.lower).min()) >= 0
    assert float((both.lower - first.lower).max()) > 1e-4
    values = torch.einsum("so,pbo->psb", matrix, nets.outputs_of(graph, nets.points_of(box, 500)))
    assert float((both.lower - values.amin(0)).max()) <= 1e-9


def test_the_first_phase_gains_and_leaves_intermediate_bounds_alone() -> None:
    graph, box, matrix = problem()
    state, lower = nets.crown(graph, box, matrix)
    case = (graph, box, matrix)

    def open_until_gained(bounds: Tensor) -> Tensor:
        return (bounds - lower < 1e-3).all().expand_as(bounds)

    options = AlphaOptions(iterations=50, final_first=50)
    result = nets.alpha_crown(*case, options, open_rows=open_until_gained)
    assert 0 < result.iterations <= 50
    assert float((result.lower - lower).max()) >= 1e-3
    for node in graph.bounded:
        assert torch.equal(result.bounds[node].lower, state.bounds[node].lower)
        assert torch.equal(result.bounds[node].upper, state.bounds[node].upper)


def test_the_slopes_of_the_first_phase_are_returned_with_its_bounds() -> None:
    """Without a joint step the α returned are those the first phase moved, not CROWN's."""
    case = problem()
    crown, first = solve(case, iterations=0), solve(case, iterations=0, final_first=8)
    moved = {i: float((first.alphas[i] - crown.alphas[i]).abs().max()) for i in crown.alphas}
    assert max(moved.values()) > 0.1


def test_slopes_that_memory_would_not_hold_are_those_of_the_functionals_alone() -> None:
    """As of three wide convolutions: a process that allocates them is killed."""
    case = graph, box, matrix = problem()
    options, told = AlphaOptions(iterations=8), list[str]()

    def within(num_bytes: int) -> AlphaResult:
        limited = BoundOptions(alpha_bytes=num_bytes, told=told.append)
        return nets.alpha_crown(graph, box, matrix, options, limited)

    short = within(100)
    (event,) = told
    assert "α of inner layers would take" in event
    crown, joint = solve(case, iterations=0), solve(case, iterations=8)
    assert float((short.lower - crown.lower).max()) > 1e-4
    for node in graph.bounded:
        assert torch.equal(short.bounds[node].lower, crown.bounds[node].lower)
    assert torch.equal(within(1 << 30).lower, joint.lower) and len(told) == 1


def test_it_ends_where_steps_gain_little() -> None:
    case = problem()
    every = solve(case, iterations=150, patience=1000)
    fewer = solve(case, iterations=150, patience=1000, saturation=0.05)
    assert every.iterations == 150
    assert 10 <= fewer.iterations < 100
    crown = solve(case, iterations=0)
    gained = (fewer.lower - crown.lower).sum() / (every.lower - crown.lower).sum()
    assert float(gained) > 0.8


def test_a_steady_gain_does_not_end_it() -> None:
    """Slopes that move evenly gain about the same in each step."""
    result = solve(problem(), iterations=30, learning_rate=1e-3, decay=1.0, saturation=0.05)
    assert result.iterations == 30


def test_the_joint_phase_begins_at_the_best_slopes_not_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps this long overshoot: the last slopes of the first phase are worse than the best."""
    begun: list[tuple[Tensor, Tensor]] = []
    last: list[Tensor] = []
    begin = alpha._Optimization.begin_joint
    evaluate = alpha._Optimization.evaluate

    def flat(optimization: alpha._Optimization) -> Tensor:
        return torch.cat([a.detach().flatten() for a in optimization.spec.alphas[0].values()])

    def begins(optimization: alpha._Optimization, start: Relaxations) -> None:
        last.append(flat(optimization))
        begin(optimization, start)

    def evaluates(optimization: alpha._Optimization, open_rows: alpha.OpenRows) -> float:
        if last and not begun:
            best = [kept.flatten() for kept in optimization.best_alphas[0].values()]
            begun.append((flat(optimization), torch.cat(best)))
        return evaluate(optimization, open_rows)

    monkeypatch.setattr(alpha._Optimization, "begin_joint", begins)
    monkeypatch.setattr(alpha._Optimization, "evaluate", evaluates)
    solve(problem(), iterations=1, final_first=4, learning_rate=0.9)
    ((start, best),) = begun
    assert float((last[0] - best).abs().max()) > 0.1
    assert torch.equal(start, best)
