"""β-CROWN bounds of subproblems: sound on every point that meets the splits, tighter with β."""

from __future__ import annotations

import torch
from torch import nn

from auto_LiRPA_patches.engine.descent import optimize_subproblems
from auto_LiRPA_patches.engine.options import BoundOptions, never
from auto_LiRPA_patches.engine.schedule import crown_relaxations
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets

BATCH = 24


def _problem(seed: int) -> tuple[Subproblems, nn.Sequential]:
    """Random splits of a random network, three inputs; one box, other splits per subproblem."""
    torch.manual_seed(seed)
    module = nets.mlp(3, 8, 6, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    graph = nets.graph_of(module, (3,))
    box = Interval(-torch.ones(1, 3).double(), torch.ones(1, 3).double())
    state = crown_relaxations(graph, box, BoundOptions(sparse_alpha=False))
    rows = torch.tensor([[1.0, -1.0], [0.0, 1.0]]).double()
    bounds, signs, alphas = {}, {}, {}
    for index in graph.relaxed:
        source = graph.nodes[index].inputs[0]
        low = state.bounds[source].lower.expand(BATCH, -1).clone()
        high = state.bounds[source].upper.expand(BATCH, -1).clone()
        sign = torch.randint(-2, 3, low.shape).clamp(-1, 1).double()
        sign = torch.where((low < 0) & (high > 0) & (torch.rand(low.shape) < 0.4), sign, 0.0)
        bounds[source] = Interval(
            torch.where(sign > 0, low.clamp(min=0), low),
            torch.where(sign < 0, high.clamp(max=0), high),
        )
        signs[index] = sign
        alphas[index] = torch.rand(1, 2, BATCH, low.shape[1]).double()
    coeffs = rows[:, None].expand(2, BATCH, 2).contiguous()
    problem = Subproblems(graph, box, dict(state.features), coeffs, bounds, signs, alphas)
    return problem, module


def _smallest(problem: Subproblems, module: nn.Sequential) -> torch.Tensor:
    """Smallest sampled value of each row over the points of each subproblem, +inf without any."""
    points = torch.rand(200_000, 3).double() * 2 - 1
    first = module.double()[0](points)
    second = module[2](torch.relu(first))
    values = module[4](torch.relu(second)) @ problem.rows[:, 0].T
    module.float()
    inside = torch.ones(BATCH, len(points), dtype=torch.bool)
    for sign, z in zip(problem.signs.values(), (first, second), strict=True):
        for b in range(BATCH):
            inside[b] &= ((sign[b] * z) >= 0).all(dim=1)
    found = torch.full((2, BATCH), torch.inf).double()
    for b in range(BATCH):
        if bool(inside[b].any()):
            found[:, b] = values[inside[b]].amin(0)
    return found


def test_bounds_hold_on_every_point_that_meets_the_splits() -> None:
    for seed in range(3):
        problem, module = _problem(seed)
        smallest = _smallest(problem, module)
        assert bool(torch.isfinite(smallest).any())
        for iterations in (0, 1, 30):
            found = optimize_subproblems(
                problem,
                BetaOptions(iterations=iterations, alpha_rate=0.2, beta_rate=0.3),
                lambda lower: torch.ones_like(lower, dtype=torch.bool),
                never,
            )
            assert bool((found.lower <= smallest + 1e-9).all()), (seed, iterations)


def test_beta_tightens_and_its_wrong_sign_would_be_seen() -> None:
    problem, module = _problem(1)

    def everything(lower: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(lower, dtype=torch.bool)

    options = BetaOptions(iterations=40, alpha_rate=0.2, beta_rate=0.0)
    without = optimize_subproblems(problem, options, everything, never).lower
    with_beta = optimize_subproblems(
        problem, BetaOptions(iterations=40, alpha_rate=0.2, beta_rate=0.3), everything, never
    ).lower
    assert bool((with_beta > without + 1e-3).any())
    # The likely bug: the multiplier is added with the wrong sign.
    betas = {index: torch.rand(2, *sign.shape).double() for index, sign in problem.signs.items()}
    flipped = {index: -sign for index, sign in problem.signs.items()}
    wrong = Subproblems(
        problem.graph, problem.box, problem.features, problem.rows, problem.bounds, flipped,
        problem.alphas, betas,
    )  # fmt: skip
    with torch.no_grad():
        lower = wrong.lower(wrong.relaxations())
    assert bool((lower > _smallest(problem, module)).any())


def test_alpha_and_beta_returned_give_the_bound_again() -> None:
    problem, _ = _problem(2)
    found = optimize_subproblems(
        problem,
        BetaOptions(iterations=15, alpha_rate=0.2, beta_rate=0.2),
        lambda lower: torch.ones_like(lower, dtype=torch.bool),
        never,
    )
    again = Subproblems(
        problem.graph, problem.box, problem.features, problem.rows, problem.bounds, problem.signs,
        found.alphas, found.betas,
    )  # fmt: skip
    with torch.no_grad():
        lower = again.lower(again.relaxations())
    torch.testing.assert_close(lower, found.lower, rtol=0, atol=1e-12)
    assert all(bool((beta >= 0).all()) for beta in found.betas.values())
    assert all(bool(((a >= 0) & (a <= 1)).all()) for a in found.alphas.values())
