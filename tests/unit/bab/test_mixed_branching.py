"""Branching on ReLU in networks that also multiply, or take softmax or sigmoid, of their values.

What is not ReLU keeps the root's relaxation. A failure is a bound above a value that a point of the
subproblem takes, a false proof, or a tree that gains nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions, splittable
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.features import Features
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.splitter import LOCATE, Splitter
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause
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
    """Tokens of two numbers, one head, and a ReLU layer behind it."""

    def __init__(self, tokens: int = 3) -> None:
        super().__init__()
        self.tokens = tokens
        self.first = nn.Linear(3, 2 * tokens)
        self.query, self.key, self.value = (nn.Linear(2, 2) for _ in range(3))
        self.hidden, self.last = nn.Linear(2 * tokens, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.relu(self.first(x)).reshape(-1, self.tokens, 2)
        scores = self.query(tokens) @ self.key(tokens).transpose(1, 2)
        mixed = torch.softmax(scores, dim=-1) @ self.value(tokens)
        return self.last(torch.relu(self.hidden(mixed.reshape(-1, 2 * self.tokens))))


class Averaged(nn.Module):
    """A ReLU network on averages of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x.mean(2))))


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


def _of_two_clauses(settings: BoundSettings) -> Root:
    """An open clause of one row, and one of two."""
    network, _ = _network("attention", 1)
    both = Clause(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([90.0, 95.0]))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], 100.0), both)
    root = verify_region(network, where, settings).root
    assert root is not None
    return root


ALPHA = BoundSettings(alpha=AlphaOptions(iterations=5, learning_rate=0.3, early_stop=False))


def _undivided(root: Root) -> tuple[Bounding, Tensor, Tensor]:
    """Margins of the undivided subproblems, as bounded again and as the root has them."""
    bounding = Bounding(root, Features.of(root), OpenClauses.of(root, 0.0), BoundOptions())
    batch = bounding.undivided()
    return bounding, bounding.evaluate(batch), batch.margin


def test_undivided_subproblems_have_the_bounds_of_the_root() -> None:
    bounding, again, margins = _undivided(_of_two_clauses(ALPHA))
    assert torch.allclose(again.double(), margins, atol=2e-5)
    # The likely bugs: α of other rows, and none, which is sound as well.
    own = bounding._fixed_alphas
    bounding._fixed_alphas = lambda clause: own(clause.flip(0))  # type: ignore[method-assign]
    flipped = bounding.evaluate(bounding.undivided())
    bounding._fixed_alphas = lambda clause: {}  # type: ignore[method-assign]
    without = bounding.evaluate(bounding.undivided())
    for other in (flipped, without):
        assert not torch.allclose(other.double(), margins, atol=2e-5)


@pytest.mark.parametrize("seed", range(2))
def test_many_tokens_are_branched_on(seed: int) -> None:
    torch.manual_seed(seed)
    network = network_of(Attention(tokens=12).eval(), (3,))
    with torch.no_grad():
        sampled = float((network.forward(_points()) @ torch.tensor([1.0, -1.0])).min())
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], sampled - 1e-4))
    found = decide(network, where, replace(SETTINGS, max_iterations=2))
    assert found.ending is not Ending.STUCK and found.domains_visited > 2


@pytest.mark.parametrize("seed", range(2))
def test_averages_of_inputs_are_branched_on(seed: int) -> None:
    torch.manual_seed(seed)
    network = network_of(Averaged().eval(), (3, 4))
    with torch.no_grad():
        sampled = float((network.forward(_points()[..., None].expand(-1, 3, 4)))[:, 0].min())
    for threshold, endings in ((sampled - 0.02, (Ending.PROVEN,)), (sampled, (Ending.VIOLATED,))):
        box = region([-1] * 12, [1] * 12, at_most([1.0, 0.0], threshold + 1e-4))
        assert decide(network, box).ending in endings


@pytest.mark.parametrize("iterations", [0, 2])
def test_inner_neurons_bounded_anew_keep_to_the_points_of_a_subproblem(iterations: int) -> None:
    root = _of_two_clauses(replace(ALPHA, alpha=replace(ALPHA.alpha, keep_inner=True)))
    beta = BetaOptions(iterations=iterations, alpha_rate=0.1, beta_rate=0.1)
    features = Features.of(root)
    options = (root, features, OpenClauses.of(root, 0.0), BoundOptions())
    bounding = Bounding(*options, inner=beta)
    batch = bounding.undivided()
    feature = int(features.unstable.nonzero()[0])
    splitter = Splitter(bounding, batch, LOCATE["uniform"])
    every = torch.full((batch.count,), feature)
    child = splitter.child(batch, every, torch.ones_like(every))
    problem = bounding.subproblems(child, bounding.signs(child))
    assert bounding.inner is not None
    after = bounding.inner.tighten(problem)
    _, module = _network("attention", 1)
    points = _points()
    with torch.no_grad():
        z = module.first(points)
        neuron = features.spans[0].index
        inside = z[:, feature if neuron is None else int(neuron[feature])] >= 0
        tokens = torch.relu(z[inside]).reshape(-1, 3, 2)
        scores = module.query(tokens) @ module.key(tokens).transpose(1, 2)
        hidden = module.hidden((torch.softmax(scores, -1) @ module.value(tokens)).reshape(-1, 6))
    source = features.spans[-1].source
    for bounds in (problem.bounds[source], after.bounds[source]):
        assert (bounds.lower[0] <= hidden.amin(0) + 1e-5).all()
        assert (bounds.upper[0] >= hidden.amax(0) - 1e-5).all()
    before, now = problem.bounds[source], after.bounds[source]
    assert float((now.upper - now.lower).sum()) < float((before.upper - before.lower).sum())
