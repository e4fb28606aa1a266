"""Branching on ReLU in networks that also multiply, or take softmax or sigmoid, of their values.

What is not ReLU keeps the root's relaxation. A failure is a bound above a value that a point of the
subproblem takes, a false proof, or a tree that gains nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import splittable
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.features import Features
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.splitter import LOCATE, Splitter
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.root import Root
from complete_verifier.model.network import Network
from tests.unit.bab.test_activation_branching import CROWN, SETTINGS, decide
from tests.unit.bounds.region_cases import at_most, network_of, region

SPLITS = 4


class Gated(nn.Module):
    """ReLU layers whose values are multiplied by a sigmoid of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(3, 8), nn.Linear(8, 6)
        self.value, self.last = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(self.value(h) * torch.sigmoid(self.gate(h))))


class Attention(nn.Module):
    """Three tokens of two numbers, one head, and a ReLU layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.query, self.key, self.value = (nn.Linear(2, 2) for _ in range(3))
        self.hidden, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.relu(self.first(x)).reshape(-1, 3, 2)
        scores = self.query(tokens) @ self.key(tokens).transpose(1, 2)
        mixed = torch.softmax(scores, dim=-1) @ self.value(tokens)
        return self.last(torch.relu(self.hidden(mixed.reshape(-1, 6))))


NETWORKS = {"gated": (Gated, 2.5), "attention": (Attention, 1.5)}  # and a factor on weights


def _network(name: str, seed: int) -> tuple[Network, nn.Module]:
    torch.manual_seed(seed)
    build, factor = NETWORKS[name]
    module = build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(factor)
    network = network_of(module, (3,))
    assert not splittable(network.graph)
    return network, module


def _root(network: Network, threshold: float) -> Root:
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], threshold))
    root = verify_region(network, where, CROWN).root
    assert root is not None
    return root


def _points() -> Tensor:
    return torch.cartesian_prod(*[torch.linspace(-1, 1, 41)] * 3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_no_point_of_a_subproblem_lies_below_its_bound(name: str, seed: int) -> None:
    network, module = _network(name, seed)
    root = _root(network, 100.0)
    features, clauses = Features.of(root), OpenClauses.of(root, 0.0)
    bounding = Bounding(root, features, clauses, BoundOptions())
    first = features.spans[0]
    open_features = features.unstable[: first.count].nonzero().squeeze(1)[:SPLITS].tolist()
    points = _points()
    with torch.no_grad():
        values = network.forward(points) @ torch.tensor([1.0, -1.0]) - 100.0
        inner = module.first(points)
    neurons = range(first.count) if first.index is None else first.index.tolist()
    tightened = 0
    for sides in product((1, -1), repeat=len(open_features)):
        batch = bounding.undivided()
        inside = torch.ones(len(points), dtype=torch.bool)
        for feature, side in zip(open_features, sides, strict=True):
            splitter = Splitter(bounding, batch, LOCATE["uniform"])
            batch = splitter.child(batch, torch.tensor([feature]), torch.tensor([side]))
            inside &= side * inner[:, list(neurons)[feature]] >= 0
        found = bounding.optimize(batch, SETTINGS.beta, stop_early=False)
        tightened += bool(found.margin[0] > root.lower[0] + root.slack[0] - 100.0 + 1e-3)
        if inside.any():
            assert float(found.margin[0]) <= float(values[inside].min()) + 1e-5
    assert tightened > len(open_features) or name == "gated"  # whose root is nearly tight


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_thresholds_around_the_minimum_are_answered_as_sampling_says(name: str, seed: int) -> None:
    network, _ = _network(name, seed)
    with torch.no_grad():
        sampled = float((network.forward(_points()) @ torch.tensor([1.0, -1.0])).min())
    root_bound = float(_root(network, 100.0).lower[0])
    proven = 0
    for share in (0.03, 0.3, 1.1):
        threshold = root_bound + share * (sampled - root_bound)
        where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], float(threshold)))
        found = decide(network, where, replace(SETTINGS, max_iterations=6))
        if threshold > sampled:
            assert found.ending is not Ending.PROVEN
        proven += found.ending is Ending.PROVEN
    assert proven >= 1 or name == "gated"
