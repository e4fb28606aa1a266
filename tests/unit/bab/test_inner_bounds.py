"""Inner bounds of subproblems: sound on every point that meets the splits, and at least as tight.

A failure is a neuron's bound that a point of its subproblem violates, which proves what is false.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_minimum import affine_layers, minimum

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
