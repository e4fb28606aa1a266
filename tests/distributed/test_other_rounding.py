"""Ranks of different make round differently; with neurons split, what they decide must be one.

Rank 1's numbers are a little off here, as those of another processor would be. A failure means
ranks that split different neurons, or keep the slopes of different steps, and prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from auto_LiRPA_patches.engine import backward
from auto_LiRPA_patches.engine.adam import ProjectedAdam
from auto_LiRPA_patches.engine.neurons import Neurons
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.sharding.collectives import Ranks
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from tests.distributed.ranks import RankPool
from tests.distributed.test_tensor_parallel_branching import _module, _network
from tests.unit.bab.test_activation_branching import _confirm
from tests.unit.bounds.region_cases import at_most, region

pytestmark = pytest.mark.distributed

_SETTINGS = BabSettings(batch_size=16, beta=BetaOptions(iterations=1), max_iterations=10)


@contextmanager
def _rounding(ranks: Ranks, agree: bool) -> Iterator[None]:
    """Rank 1 rounds otherwise where a bound is evaluated, and its gradients hold some noise.

    Without `agree`, each rank goes on with what it has.
    """
    exact, agreed = backward.concretize, Neurons.agreed
    move = ProjectedAdam.move

    def noisy(own: Any, gradients: Any, **options: Any) -> None:
        random = torch.Generator().manual_seed(1)
        move(
            own,
            [
                None if g is None else g + 0.1 * torch.randn(g.shape, generator=random)
                for g in gradients
            ],
            **options,
        )

    try:
        if ranks.tp.rank == 1:
            ProjectedAdam.move = noisy
            backward.concretize = lambda coeffs, box: exact(coeffs, box) * (1 + 3e-7)
        if not agree:
            Neurons.agreed = lambda self, value: value
        yield
    finally:
        backward.concretize, Neurons.agreed = exact, agreed
        ProjectedAdam.move = move


# -- run by every rank ---------------------------------------------------------------------


def bound(ranks: Ranks, agree: bool) -> list[Any]:
    """Margins, and the slopes of neurons that every rank has."""
    network = _network(ranks, _module(nn.ReLU))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], 0.3))
    with _rounding(ranks, agree):
        found = verify_region(network, where, BoundSettings(alpha=AlphaOptions(iterations=5)))
    assert found.root is not None
    split = network.graph.neurons.split
    slopes = {i: alpha.tolist() for i, alpha in found.root.alphas.items() if i not in split}
    assert slopes
    return [found.crown, found.alpha_crown, slopes]


def evaluate(ranks: Ranks, agree: bool) -> list[float]:
    """At points that differ: without agreement, each neuron would be at its own rank's point."""
    network = _network(ranks, _module(nn.ReLU))
    points = torch.full((1, 3), 0.25 + 0.01 * ranks.tp.rank)
    with _rounding(ranks, agree), torch.no_grad():
        here = network.forward(points)
        there = _module(nn.ReLU)(torch.full((1, 3), 0.25))
    return (here - there).abs().flatten().tolist()


def branch(ranks: Ranks) -> dict[str, Any]:
    network = _network(ranks, _module(nn.ReLU))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], -0.6))
    with _rounding(ranks, True):
        found = verify_region(network, where, BoundSettings(method="crown"))
        assert found.root is not None
        context = BabContext(
            network=network, region=where, bounds=BoundOptions(), confirm=_confirm(network)
        )
        outcome = activation_branch_and_bound(found.root, context, _SETTINGS)
    return {
        "visited": outcome.domains_visited,
        "fingerprint": outcome.fingerprint,
        "lower": outcome.lower_bound,
    }


# -- tests ---------------------------------------------------------------------------------


def test_bounds_are_those_of_the_first_rank(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(bound, 2, True, tp=2)
    assert first == second
    first, second = rank_pool.run(bound, 2, False, tp=2)
    assert first != second, "the ranks round alike; the lines above prove nothing"


def test_the_network_is_evaluated_at_the_first_ranks_points(rank_pool: RankPool) -> None:
    for difference in rank_pool.run(evaluate, 2, True, tp=2):
        assert max(difference) < 1e-6
    assert max(rank_pool.run(evaluate, 2, False, tp=2)[0]) > 1e-3


def test_ranks_follow_one_tree(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(branch, 2, tp=2)
    assert first == second and first["visited"] > 20
