"""Branch and bound on networks split by neuron: right beside the minimum, one tree on all ranks.

The threshold is put just below and just above the exact minimum. A failure is a false proof, a
missed violation, or ranks that follow different trees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from exact_minimum import affine_layers, minimum
from torch import nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.bab import bounding
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.features import Features
from complete_verifier.bab.outcome import Ending
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from tests.distributed.ranks import RankPool
from tests.unit.bab.test_activation_branching import _confirm
from tests.unit.bounds.region_cases import at_most, network_of, region
from tests.unit.engine.nets import mlp

pytestmark = pytest.mark.distributed

BETA = BetaOptions(iterations=8, alpha_rate=0.1, beta_rate=0.1)
# name -> activation, bounds at the root, settings
CASES: dict[str, tuple[type[nn.Module], str, BabSettings]] = {
    "kfsb": (nn.ReLU, "crown", BabSettings(batch_size=32, beta=BETA, reduceop="max")),
    "babsr, alpha": (nn.ReLU, "alpha-crown", BabSettings(batch_size=32, beta=BETA, method="babsr")),
    "inner bounds": (
        nn.ReLU,
        "crown",
        BabSettings(batch_size=8, beta=BETA, inner=replace(BETA, iterations=2), synchronous=True),
    ),
    "tanh": (nn.Tanh, "crown", BabSettings(batch_size=32, beta=BETA, max_iterations=12)),
}


def _module(activation: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(11)
    module = mlp(3, 9, 7, 8, 2, activation=activation).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.6)
    return module


def _network(ranks: Ranks, module: nn.Module) -> Network:
    network = network_of(module, (3,))
    return replace(network, graph=split_neurons(network.graph, ranks.tp, OneRankWeights()))


def economical(ranks: Ranks, threshold: float) -> int:
    network = _network(ranks, _module(nn.ReLU))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], threshold))
    root = verify_region(network, where, BoundSettings(method="crown")).root
    assert root is not None
    with patch.object(bounding, "_STEP_WORK", 1330):
        of_root = Features.of(root), OpenClauses.of(root, 0.0)
        return Bounding(root, *of_root, BoundOptions()).economical


def test_ranks_with_more_and_fewer_neurons_take_as_many_subproblems(rank_pool: RankPool) -> None:
    """With 9 and 7 neurons over two ranks one holds more weights, of which the number depends."""
    first, second = rank_pool.run(economical, 2, _minimum(nn.ReLU) + 0.4, tp=2)
    assert first == second > 1


def decide(ranks: Ranks, name: str, threshold: float) -> dict[str, Any]:
    """What branch and bound says about ``y_0 - y_1 <= threshold`` being impossible."""
    activation, method, settings = CASES[name]
    network = _network(ranks, _module(activation))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], threshold))
    alpha = AlphaOptions(iterations=5, keep_inner=settings.inner is not None)
    found = verify_region(network, where, BoundSettings(method=method, alpha=alpha))
    if found.root is None:
        return {"ending": Ending.PROVEN, "visited": 0}
    context = BabContext(
        network=network, region=where, bounds=BoundOptions(), confirm=_confirm(network)
    )
    outcome = activation_branch_and_bound(found.root, context, settings)
    return {
        "ending": outcome.ending,
        "visited": outcome.domains_visited,
        "fingerprint": outcome.fingerprint,
        "lower": outcome.lower_bound,
        "alphas": sum(alpha.shape[-1] for alpha in found.root.alphas.values()),
    }


def _minimum(activation: type[nn.Module]) -> float:
    module = _module(activation)
    if activation is nn.ReLU:
        layers = affine_layers(module, (3,))
        return minimum(layers, np.array([1.0, -1.0]), -np.ones(3), np.ones(3))
    points = torch.cartesian_prod(*[torch.linspace(-1, 1, 61)] * 3)
    with torch.no_grad():
        outputs = module(points)
    return float((outputs[:, 0] - outputs[:, 1]).min())


@pytest.mark.parametrize("name", list(CASES))
def test_ranks_follow_one_tree_to_the_right_answer(rank_pool: RankPool, name: str) -> None:
    truth = _minimum(CASES[name][0])
    gap = 1e-3 * max(1.0, abs(truth)) if CASES[name][0] is nn.ReLU else 0.3
    for size in (2, 3) if name == "kfsb" else (2,):
        holds = rank_pool.run(decide, size, name, truth - gap, tp=size, timeout=200)
        assert holds[0]["ending"] is Ending.PROVEN and holds[0]["visited"] > 0
        broken = rank_pool.run(decide, size, name, truth + gap, tp=size, timeout=200)
        assert broken[0]["ending"] is not Ending.PROVEN
        for results in (holds, broken):
            for key in ("ending", "visited", "fingerprint", "lower"):
                assert all(result.get(key) == results[0].get(key) for result in results), key
        # 24 neurons: those of two layers with their owners, those of the third with everyone.
        assert all(result["alphas"] < 24 for result in holds)
