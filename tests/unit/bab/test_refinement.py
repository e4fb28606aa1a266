"""Refined bounds: no value leaves them, no exact optimum either, and with splits they come close.

A failure of the first kind is a neuron taken for stable that is not, which proves what is false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_minimum import SLACK, Layer, minimum
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.errors import SoundnessError
from auto_LiRPA_patches.operators.linear import Linear
from complete_verifier.bab import neuron_tree
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.neuron_tree import NeuronTree
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.refinement import RefineContext, RefineSettings, refine
from complete_verifier.bab.settings import refine_passes
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.root import Root
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.config import load_config
from tests.unit.bab.test_activation_branching import Residual, _seeded
from tests.unit.bab.test_inner_bounds import _values
from tests.unit.bounds.region_cases import at_most, mlp, network_of, region

BETA = BetaOptions(iterations=12, alpha_rate=0.2, beta_rate=0.2)
SETTINGS = RefineSettings(rounds=12, first_iterations=20, beta=BETA, batch_size=10)


def _root(seed: int, *, residual: bool = False) -> Root:
    build = Residual if residual else lambda: mlp(3, 8, 8, 8, 2)
    network = network_of(_seeded(build, seed), (3,))
    where = region([-1] * 3, [1] * 3, at_most([1.0, -1.0], 100.0))
    root = verify_region(network, where, BoundSettings(alpha=AlphaOptions(iterations=5))).root
    assert root is not None
    return root


def _context(late: bool = False) -> RefineContext:
    return RefineContext(BoundOptions(), Partners.alone(), lambda share: lambda ahead: late)


def _points(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    inside = torch.rand(count, 3, generator=generator) * 2 - 1
    return torch.cat([inside, inside.sign()])


def _violations(root: Root, values: dict[int, Tensor]) -> int:
    found = 0
    for node, bounds in root.bounds.items():
        slack = 1e-6 * (1 + values[node].abs())
        found += int((values[node] < bounds.lower - slack).sum())
        found += int((values[node] > bounds.upper + slack).sum())
    return found


def _layers_to(root: Root, node: int) -> list[Layer]:
    layers = []
    for entry in root.graph.nodes[: node + 1]:
        operator = entry.operator
        if isinstance(operator, Linear):
            blocks = [root.graph.weights.gather(block) for block in operator.weight]
            matrix = torch.cat(blocks).double().numpy()
            offset = operator.offset(root.graph.weights)
            assert offset is not None
            layers.append((matrix.T if operator.transposed else matrix, offset.double().numpy()))
    return layers


def _total_width(root: Root) -> float:
    return sum(float((b.upper - b.lower).sum()) for b in root.bounds.values())


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_value_leaves_its_bounds(seed: int, residual: bool) -> None:
    root = _root(seed, residual=residual)
    refined = refine(root, _context(), SETTINGS)
    assert _violations(refined, _values(refined, _points(4000))) == 0
    # The network is the same one, without neurons found inactive.
    points = _points(50)
    before, after = (r.graph.forward(points) for r in (root, refined))
    torch.testing.assert_close(after, before)


@pytest.mark.parametrize("seed", [1, 2])
def test_bounds_come_close_to_the_exact_optimum_from_outside(seed: int) -> None:
    root = _root(seed)
    refined = refine(root, _context(), SETTINGS)
    low, high = (end[0].double().numpy() for end in (root.box.lower, root.box.upper))
    gaps = []
    for node in refined.graph.bounded[1:]:
        layers, bounds = _layers_to(refined, node), refined.bounds[node]
        for place in range(bounds.lower.shape[1]):
            row = np.zeros(bounds.lower.shape[1])
            row[place] = 1.0
            least, most = minimum(layers, row, low, high), -minimum(layers, -row, low, high)
            lower, upper = float(bounds.lower[0, place]), float(bounds.upper[0, place])
            assert lower <= least + SLACK and upper >= most - SLACK
            if lower < 0 < upper:
                gaps.append(1 - (most - least) / (upper - lower))
    assert gaps and np.mean(gaps) < 0.15


def test_splitting_tightens_what_alpha_alone_leaves() -> None:
    root = _root(2)
    alone = refine(root, _context(), replace(SETTINGS, rounds=0))
    split = refine(root, _context(), SETTINGS)
    kept = min(len(alone.bounds), len(split.bounds))
    assert kept == len(root.bounds)
    assert _total_width(split) < 0.95 * _total_width(alone) < _total_width(root)


def test_a_lost_child_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one side of each split forgotten, bounds cross or values leave them."""
    whole = neuron_tree.NeuronTree._split

    def half(tree: NeuronTree, batch: DomainBatch, is_open: Tensor) -> DomainBatch:
        children = whole(tree, batch, is_open)
        return children.select(torch.arange(children.count // 2))

    monkeypatch.setattr(neuron_tree.NeuronTree, "_split", half)
    assert all(_is_seen(seed) for seed in (1, 2, 3))


def _is_seen(seed: int) -> bool:
    try:
        refined = refine(_root(seed), _context(), SETTINGS)
    except SoundnessError:
        return True
    return _violations(refined, _values(refined, _points(4000))) > 0


def test_without_time_the_root_stays() -> None:
    root = _root(1)
    refined = refine(root, _context(late=True), SETTINGS)
    for node, bounds in root.bounds.items():
        assert torch.equal(refined.bounds[node].lower, bounds.lower)


@pytest.mark.parametrize("fits", [3, 0])
def test_neurons_that_memory_does_not_hold_keep_their_bounds(
    fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    run = NeuronTree.run

    def starving(tree: NeuronTree) -> Tensor:
        if tree._clauses.index.shape[0] > 2 * fits:  # two bounds of each neuron
            raise torch.OutOfMemoryError("planted")
        return run(tree)

    monkeypatch.setattr(NeuronTree, "run", starving)
    root = _root(2)
    context = replace(_context(), bounds=BoundOptions(told=told.append))
    refined = refine(root, context, SETTINGS)
    assert _violations(refined, _values(refined, _points(2_000))) == 0
    assert (_total_width(refined) < _total_width(root.without_inactive())) == (fits > 0)
    assert any("not refined further" in line for line in told) == (fits == 0)
    assert told


@pytest.mark.parametrize("asks", [1, 3, 8])
def test_synchronous_refinement_ends_with_the_instances_own_limit(asks: int) -> None:
    asked = 0

    def late(_ahead: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > asks

    context = replace(_context(), bounds=BoundOptions(out_of_time=late))
    refined = refine(_root(3), context, replace(SETTINGS, synchronous=True, rounds=400))
    assert asks < asked < asks + 6
    assert _violations(refined, _values(refined, _points(2000))) == 0


def test_layers_together_keep_to_the_fraction_of_the_time() -> None:
    """Each layer's own share ends no later than that of all."""
    portions: list[float] = []

    def clock(share: float) -> Callable[[float], bool]:
        portions.append(share)
        whole = len(portions) == 1
        return lambda _ahead: whole and len(portions) > 1

    context = RefineContext(BoundOptions(), Partners.alone(), clock)
    root = _root(3)
    refined = refine(root, context, SETTINGS)
    assert portions == [SETTINGS.share, SETTINGS.share / 2]
    for node, bounds in root.bounds.items():
        assert torch.equal(refined.bounds[node].lower, bounds.lower)


def test_synchronous_refinement_asks_no_clock_and_repeats_its_bits() -> None:
    settings = replace(SETTINGS, synchronous=True, rounds=4)
    one, other = (refine(_root(3), _context(late=True), settings) for _ in range(2))
    assert _total_width(one) < _total_width(_root(3))
    for node, bounds in one.bounds.items():
        assert torch.equal(other.bounds[node].lower, bounds.lower)
        assert torch.equal(other.bounds[node].upper, bounds.upper)


@pytest.mark.parametrize(
    ("flags", "dense", "conv"),
    [
        ((), [], []),
        (("--complete_verifier", "bab-refine"), [0.05, 0.3], [0.05, 0.3]),
        (("--complete_verifier", "auto"), [0.05, 0.3], []),
        (("--complete_verifier", "bab-refine", "--force_synchronous"), [0.0], [0.0]),
    ],
)
def test_which_configs_refine(
    flags: tuple[str, ...], dense: list[float], conv: list[float]
) -> None:
    config = load_config(["--onnx_path", "net.onnx", "--vnnlib_path", "p.vnnlib", *flags]).config
    convolution = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2))
    for module, shape, expected in ((mlp(3, 4, 2), (3,), dense), (convolution, (1, 4, 4), conv)):
        passes = refine_passes(config, network_of(module.eval(), shape).graph)
        assert [one.share for one in passes] == expected
        assert all(one.settings.synchronous == (one.share == 0.0) for one in passes)
    sigmoid = network_of(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)), (3,))
    assert refine_passes(config, sigmoid.graph) == ()
