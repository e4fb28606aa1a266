"""Inner bounds of subproblems: sound on every point that meets the splits, and at least as tight.

A failure is a neuron's bound that a point of its subproblem violates, which proves what is false.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_minimum import affine_layers, minimum
from torch import nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.children import child
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.outcome import Ending
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.settings import BoundSettings
from tests.unit.bab.test_activation_branching import SETTINGS, _seeded, decide
from tests.unit.bounds.region_cases import at_most, mlp, network_of, region

ONCE, OPTIMISED = BetaOptions(iterations=0), BetaOptions(iterations=6, alpha_rate=0.1)
BOUNDS = BoundSettings(alpha=AlphaOptions(iterations=5, keep_inner=True))
COUNT = 8


def _root(seed: int) -> Root:
    network = network_of(_seeded(lambda: mlp(3, 8, 8, 8, 2), seed), (3,))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], 0.0))
    root = verify_region(network, where, BOUNDS).root
    assert root is not None and len(root.inner) == 2
    return root


def _split(bounding: Bounding, splits: int, seed: int) -> DomainBatch:
    """`COUNT` subproblems with random splits of neurons that are open at the root."""
    generator = torch.Generator().manual_seed(seed)
    unstable = bounding.features.unstable.nonzero().squeeze(1)
    width = bounding.clauses.index.shape[1]
    root = bounding.features.join_alphas(bounding.root.alphas)[:, 0]
    batch = DomainBatch(
        clause=torch.zeros(COUNT, dtype=torch.int64),
        path=torch.arange(COUNT),
        depth=torch.zeros(COUNT, dtype=torch.int64),
        splits=torch.zeros(COUNT, 0, dtype=torch.int32),
        points=torch.zeros(COUNT, 0),
        betas=torch.zeros(COUNT, width, 0),
        alphas=root[bounding.clauses.index[:1]].expand(COUNT, -1, -1),
        ranges=bounding.root_ranges(COUNT),
        margin=torch.full((COUNT,), -torch.inf, dtype=torch.float64),
    )
    order = torch.stack([torch.randperm(len(unstable), generator=generator) for _ in range(COUNT)])
    for level in range(splits):
        side = torch.randint(0, 2, (COUNT,), generator=generator) * 2 - 1
        batch = child(batch, unstable[order[:, level]], side)
    return batch


def _values(root: Root, points: torch.Tensor) -> dict[int, torch.Tensor]:
    """The value of every node; neurons that are inactive everywhere are none of the root's."""
    values = {0: points}
    for index, node in enumerate(root.graph.nodes):
        if node.operator is not None:
            sources = (values[source] for source in node.inputs)
            values[index] = node.operator.forward(root.graph.weights, *sources).detach()
    return values


@pytest.mark.parametrize("in_tiles", [False, True])
@pytest.mark.parametrize("beta", [ONCE, OPTIMISED])
def test_bounds_hold_on_every_sampled_point_and_are_no_looser(
    beta: BetaOptions, in_tiles: bool
) -> None:
    tighter, met = 0, 0
    for seed in range(2):
        root = _root(seed)
        points = torch.rand(20_000, 3) * 2 - 1
        values = _values(root, points)
        features, clauses = Features.of(root), OpenClauses.of(root, 0.0)
        options = BoundOptions(memory_bytes=20_000)
        bounding = Bounding(root, features, clauses, options, in_tiles=in_tiles, inner=beta)
        batch = _split(bounding, 3, seed)
        signs = bounding.signs(batch)
        before = bounding.subproblems(batch, signs)
        assert bounding.inner is not None
        after = bounding.inner.tighten(before)
        for b in range(COUNT):
            inside = torch.ones(len(points), dtype=torch.bool)
            for span in features.spans:
                sign = before.signs[span.activation][b]
                inside &= (sign * span.of(values[span.source]) >= 0).all(dim=1)
            met += int(inside.sum())
            for source in root.graph.bounded:
                value = values[source][inside]
                low, high = after.bounds[source].lower[b], after.bounds[source].upper[b]
                assert bool((value >= low - 1e-5).all()) and bool((value <= high + 1e-5).all())
                if inside.any():
                    assert bool((low >= before.bounds[source].lower[b]).all())
                    assert bool((high <= before.bounds[source].upper[b]).all())
                    tighter += int((low > before.bounds[source].lower[b] + 1e-4).sum())
    assert tighter > 20 and met > 2_000


def test_optimising_tightens_further() -> None:
    root = _root(0)
    widths = []
    for beta in (ONCE, OPTIMISED):
        bounding = Bounding(
            root, Features.of(root), OpenClauses.of(root, 0.0), BoundOptions(), inner=beta
        )
        batch = _split(bounding, 3, 0)
        assert bounding.inner is not None
        problem = bounding.inner.tighten(bounding.subproblems(batch, bounding.signs(batch)))
        widths.append(sum(float(b.upper.sum() - b.lower.sum()) for b in problem.bounds.values()))
    assert widths[1] < widths[0] - 0.5


def test_children_start_from_what_their_parent_found() -> None:
    root = _root(1)
    bounding = Bounding(
        root, Features.of(root), OpenClauses.of(root, 0.0), BoundOptions(), inner=ONCE
    )
    batch = bounding.optimize(_split(bounding, 2, 1), BetaOptions(iterations=2), stop_early=False)
    fresh = bounding.root_ranges(COUNT)
    assert bool((batch.ranges[:, 0] > fresh[:, 0] + 1e-4).any())
    problem = bounding.subproblems(batch, bounding.signs(batch))
    found = bounding.features.own_bounds(problem.bounds)
    assert bool((found[:, 0] >= batch.ranges[:, 0]).all())
    assert bool((found[:, 1] <= batch.ranges[:, 1]).all())


@pytest.mark.parametrize("crown", [False, True])
@pytest.mark.parametrize("beta", [ONCE, OPTIMISED])
def test_the_answer_is_right_just_beside_the_true_minimum(beta: BetaOptions, crown: bool) -> None:
    alpha = AlphaOptions(iterations=0 if crown else 5, keep_inner=True)
    settings = replace(SETTINGS, inner=beta, method="babsr")
    module = _seeded(lambda: mlp(3, 8, 8, 2), 0)
    network = network_of(module, (3,))
    row, low, high = np.array([1.0, -1.0]), -np.ones(3), np.ones(3)
    truth = minimum(affine_layers(module, (3,)), row, low, high)
    for gap, ending in ((-1e-3, Ending.PROVEN), (1e-3, Ending.VIOLATED)):
        where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth + gap))
        found = decide(network, where, settings, BoundSettings(alpha=alpha))
        assert found.ending is ending


class _Branches(nn.Module):
    """Two branches of ReLUs, so that an inner layer of one does not depend on the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 14), nn.Linear(6, 14)
        self.above_first, self.above_second = nn.Linear(14, 10), nn.Linear(14, 10)
        self.last = nn.Linear(10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.above_first(torch.relu(self.first(x))))
        return self.last(first + torch.relu(self.above_second(torch.relu(self.second(x)))))


def test_splits_on_a_branch_that_an_inner_layer_does_not_depend_on() -> None:
    """They have multipliers there, and no slopes."""
    network = network_of(_seeded(_Branches, 1), (6,))
    root = verify_region(network, region([-1] * 6, [1] * 6, at_most([1.0, -1.0], 0.0)), BOUNDS).root
    assert root is not None
    relaxed = set(root.graph.relaxed)
    assert any(relaxed - {rows.node} > set(rows.alphas) for rows in root.inner)
    bounding = Bounding(
        root, Features.of(root), OpenClauses.of(root, 0.0), BoundOptions(), inner=OPTIMISED
    )
    batch = bounding.optimize(_split(bounding, 4, 0), BetaOptions(iterations=2), stop_early=False)
    points = torch.rand(20_000, 6) * 2 - 1
    values = torch.cat([_values(root, points)[span.source] for span in bounding.features.spans], 1)
    elements = [
        span.index if span.index is not None else torch.arange(span.count)
        for span in bounding.features.spans
    ]
    widths = [root.graph.nodes[span.source].shape[0] for span in bounding.features.spans]
    starts = [sum(widths[:place]) for place in range(len(widths))]
    own = values[:, torch.cat([e + s for e, s in zip(elements, starts, strict=True)])]
    signs, met = bounding.signs(batch), 0
    for number in range(COUNT):
        inside = (own * signs[number] >= 0).all(dim=1)
        low, high = batch.ranges[number]
        assert bool((own[inside] >= low - 1e-5).all() and (own[inside] <= high + 1e-5).all())
        met += int(inside.sum())
    assert met > 50
