"""The closed form of a bound's gradient against autograd and against differences of the bound.

A failure means that α and β are moved in a wrong direction: bounds stay sound, and get worse.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.descent import _by_autograd, _in_closed_form, optimize_subproblems
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.schedule import crown_relaxations
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets

BATCH, ROWS = 5, 2
NETS = {
    "mlp": (lambda: nets.mlp(3, 8, 6, 2), (3,)),
    "residual": (nets.Residual, (4,)),
    "conv": (nets.conv_net, (2, 6, 5)),
}


def _problem(name: str, *, boxes: int, sparse: bool) -> Subproblems:
    """Random splits, slopes and multipliers; α inside (0, 1), where the bound has a derivative."""
    torch.manual_seed(3)
    build, shape = NETS[name]
    module: nn.Module = build().eval()
    graph = nets.graph_of(module, shape)
    center = torch.rand(boxes, *shape).double()
    box = Interval(center - 0.5, center + 0.5)
    state = crown_relaxations(graph, box, BoundOptions(sparse_alpha=sparse))
    bounds, signs, alphas, betas = {}, {}, {}, {}
    for index in graph.relaxed:
        (source,) = graph.nodes[index].inputs
        known = state.interval(source)
        low = known.lower.flatten(1).expand(BATCH, -1).clone()
        high = known.upper.flatten(1).expand(BATCH, -1).clone()
        features = state.features.get(index)
        columns = torch.arange(low.shape[1]) if features is None else features
        sign = torch.randint(-1, 2, (BATCH, len(columns))).double()
        sign *= (low[:, columns] < 0) & (high[:, columns] > 0)
        low[:, columns] = torch.where(sign > 0, 0.0, low[:, columns])
        high[:, columns] = torch.where(sign < 0, 0.0, high[:, columns])
        bounds[source] = Interval(
            low.view(BATCH, *graph.nodes[source].shape),
            high.view(BATCH, *graph.nodes[source].shape),
        )
        signs[index] = sign
        # As views of a table of subproblems, which is how branch and bound has them.
        table = 0.1 + 0.8 * torch.rand(BATCH, ROWS, len(columns)).double()
        alphas[index] = table.transpose(0, 1).unsqueeze(0)
        betas[index] = torch.rand(ROWS, BATCH, len(columns)).double()
    rows = torch.randn(ROWS, BATCH, *graph.output_shape).double()
    return Subproblems(graph, box, dict(state.features), rows, bounds, signs, alphas, betas)


def _leaves(problem: Subproblems) -> Subproblems:
    return replace(
        problem,
        alphas={i: a.clone().requires_grad_() for i, a in problem.alphas.items()},
        betas={i: b.clone().requires_grad_() for i, b in problem.betas.items()},
    )


def _where_open(
    problem: Subproblems, state: Relaxations, gradients: list[Tensor | None]
) -> list[Tensor | None]:
    """Gradients with those of stable neurons' α, which its limits hold, set to the true zero."""
    found = list(gradients)
    for place, index in enumerate(problem.alphas):
        stable, own = state.relaxation(index).stable, found[place]
        if stable is not None and own is not None:
            found[place] = own * stable.is_open
    return found


@pytest.mark.parametrize("name", NETS)
def test_slopes_of_stable_neurons_stay_exact(name: str) -> None:
    """However far the optimiser goes, and whatever α a stable neuron came with."""
    problem = _problem(name, boxes=1, sparse=False)
    options = BetaOptions(iterations=5, alpha_rate=3.0, beta_rate=0.5)
    found = optimize_subproblems(problem, options, lambda lower: lower < torch.inf, lambda _: False)
    state, count = problem.relaxations(), 0
    for index, alpha in found.alphas.items():
        stable = state.relaxation(index).stable
        off = (stable.slope - alpha) * (1 - stable.is_open)
        assert bool((off == 0).all())
        count += int((stable.is_open == 0).sum())
    assert count > 5
    kept = replace(problem, alphas=found.alphas, betas=found.betas)
    torch.testing.assert_close(kept.lower(state), found.lower)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("boxes", [1, BATCH])
@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_that_of_autograd(name: str, boxes: int, sparse: bool) -> None:
    problem = _leaves(_problem(name, boxes=boxes, sparse=sparse))
    state = problem.relaxations()
    lower, closed = _in_closed_form(problem, state)
    expected, graded = _by_autograd(problem, state)
    torch.testing.assert_close(lower, expected)
    pairs = list(zip(_where_open(problem, state, closed()), graded(), strict=True))
    assert len(pairs) == len(problem.alphas) + len(problem.betas)
    for own, other in pairs:
        assert own is not None and other is not None and not own.requires_grad
        torch.testing.assert_close(own, other)
    assert sum(int((own != 0).sum()) for own, _ in pairs if own is not None) > 20


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_bound(name: str) -> None:
    problem = _problem(name, boxes=1, sparse=False)
    state = problem.relaxations()
    _, closed = _in_closed_form(problem, state)
    found = _where_open(problem, state, closed())
    step, worst = 1e-6, 0.0
    for kind, first in (("alphas", 0), ("betas", len(problem.alphas))):
        for place, (index, tensor) in enumerate(getattr(problem, kind).items()):
            way = torch.randn_like(tensor)
            ends = []
            for side in (step, -step):
                moved = {**getattr(problem, kind), index: tensor + side * way}
                ends.append(replace(problem, **{kind: moved}).lower(state).sum())
            slope = float(ends[0] - ends[1]) / (2 * step)
            gradient = found[first + place]
            assert gradient is not None
            worst = max(worst, abs(float((gradient * way).sum()) - slope) / max(1.0, abs(slope)))
    assert worst < 1e-5


@pytest.mark.parametrize("name", NETS)
def test_the_bound_is_attained_on_the_lines_taken(name: str) -> None:
    """Each bound changes by what a change of a coefficient adds: z is its derivative there."""
    problem = _problem(name, boxes=1, sparse=False)
    state = problem.relaxations()
    lower, coeffs, values = problem.attained(state)
    torch.testing.assert_close(lower, problem.lower(state))
    for index, value in values.items():
        assert coeffs[index].shape[2] == value.shape[2]
        # β adds to the coefficient of z what it takes off by its sign.
        step = 1e-6
        moved = {**problem.betas, index: problem.betas[index] + step}
        change = (replace(problem, betas=moved).lower(state) - lower) / step
        expected = -(problem.signs[index] * value).sum(-1)
        torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-4)


def test_rows_of_zeros_have_no_gradient() -> None:
    problem = _problem("mlp", boxes=1, sparse=False)
    flat = replace(problem, rows=torch.zeros_like(problem.rows), betas={})
    lower, closed = _in_closed_form(flat, flat.relaxations())
    assert bool((lower == 0).all())
    assert all(own is not None and bool((own == 0).all()) for own in closed())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_multipliers_of_split_features_alone_change_no_bit(name: str, sparse: bool) -> None:
    """Neither of the bounds nor of any gradient; the others' multipliers have no effect."""
    problem = _problem(name, boxes=1, sparse=sparse)
    state, packed = problem.relaxations(), problem.packed()
    assert any(packed.betas[i].shape[2] < beta.shape[2] for i, beta in problem.betas.items())
    lower, dense = _in_closed_form(problem, state)
    found, few = _in_closed_form(packed, state)
    assert torch.equal(found, lower)
    for index, own, other in zip([*problem.alphas, *problem.betas], few(), dense(), strict=True):
        assert own is not None and other is not None
        if own.shape != other.shape:
            places = packed.places[index].expand(ROWS, -1, -1)
            assert int((own != 0).sum()) == int((other != 0).sum()) > 0
            other = other.gather(2, places)
        assert torch.equal(own, other)
    graded, _ = _by_autograd(_leaves(packed), state)
    torch.testing.assert_close(graded, lower)
