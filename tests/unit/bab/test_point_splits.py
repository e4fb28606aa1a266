"""Splits of sigmoid and tanh at points, any number of times per neuron, ReLU beside them.

A failure is a false proof: a bound above a value that the network takes in the subproblem, a point
that no child covers, or a multiplier given to the wrong constraint.

Shape letters: B subproblems, P points, T features.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.descent import optimize_subproblems
from auto_LiRPA_patches.engine.options import BoundOptions, never
from auto_LiRPA_patches.engine.subproblems import BetaOptions, Subproblems
from auto_LiRPA_patches.operators.activation import Activation
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.cuts import Cuts
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.multipliers import collect, spread
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.splitter import LOCATE, Splitter
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.specification import Region
from tests.unit.bab.test_activation_branching import SETTINGS, decide
from tests.unit.bounds.region_cases import at_most, network_of, region

BATCH = 12
KINDS = ("sigmoid", "tanh", "mixed")
EFFORT = BetaOptions(iterations=20, alpha_rate=0.1, beta_rate=0.3)


def _network(kind: str, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    first, second = {
        "sigmoid": (nn.Sigmoid(), nn.Sigmoid()),
        "tanh": (nn.Tanh(), nn.Tanh()),
        "mixed": (nn.ReLU(), nn.Tanh()),
    }[kind]
    module = nn.Sequential(
        nn.Linear(2, 6), first, nn.Linear(6, 5), second, nn.Linear(5, 2)
    )  # fmt: skip
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.5)
    return module.eval()


def _region(rhs: float = 20.0) -> Region:
    return region([-1, -1], [1, 1], at_most([1.0, -1.0], rhs))


class _Tree:
    """Random descendants of a root, split at random features by the real splitter.

    Each holds at least one point: its own of `witnesses`.
    """

    def __init__(self, kind: str, seed: int, method: str = "uniform", depth: int = 8) -> None:
        self.module = _network(kind, seed)
        found = verify_region(
            network_of(self.module, (2,), torch.float64), _region(), BoundSettings(method="crown")
        )
        assert found.root is not None
        self.features = Features.of(found.root)
        self.bounding = Bounding(
            found.root, self.features, OpenClauses.of(found.root, 0.0), BoundOptions()
        )
        self.method = method
        generator = torch.Generator().manual_seed(seed)
        self.witnesses = torch.rand(BATCH, 2, generator=generator, dtype=torch.float64) * 2 - 1
        own, _ = self.values(self.witnesses)
        self.batch = self._planted()
        for _ in range(depth):
            # A few neurons, so that some are split again and again.
            feature = torch.randint(0, 4, (BATCH,), generator=generator)
            feature = torch.where(
                torch.rand(BATCH, generator=generator) < 0.3, self.features.total - 1, feature
            )
            signs = self.bounding.signs(self.batch)
            usable = self.bounding.open(self.batch, signs).gather(1, feature.unsqueeze(1))
            chosen = torch.where(usable.squeeze(1), feature, self._any_open(signs))
            above = self.split(self.batch, chosen, torch.ones_like(chosen))
            value = own.gather(1, chosen.unsqueeze(1)).squeeze(1)
            side = torch.where(value >= above.points[:, -1], 1, -1)
            self.batch = self.split(self.batch, chosen, side)

    def split(self, batch: DomainBatch, feature: Tensor, side: Tensor) -> DomainBatch:
        splitter = Splitter(self.bounding, batch, LOCATE[self.method])
        return splitter.child(batch, feature, side)

    def problem(self, batch: DomainBatch) -> Subproblems:
        return self.bounding.subproblems(batch, self.bounding.signs(batch))

    @torch.no_grad()
    def values(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """All features ``[P, T]`` at points, in the root's numbering, and ``row . y`` ``[P]``."""
        graph = self.features.graph
        known = [points]
        for node in graph.nodes[1:]:
            assert node.operator is not None
            known.append(node.operator.forward(graph.weights, *(known[i] for i in node.inputs)))
        parts = [span.of(known[span.source]) for span in self.features.spans]
        output = self.module.double()(points)  # the network as it was given
        self.module.float()
        return torch.cat(parts, dim=1), output[:, 0] - output[:, 1]

    def _any_open(self, signs: Tensor) -> Tensor:
        return self.bounding.open(self.batch, signs).to(torch.int8).argmax(dim=1)

    def _planted(self) -> DomainBatch:
        root = self.bounding.root
        alphas = self.features.join_alphas(root.alphas)[:1]
        return DomainBatch(
            clause=torch.zeros(BATCH, dtype=torch.int64),
            path=torch.arange(BATCH),
            depth=torch.zeros(BATCH, dtype=torch.int64),
            splits=torch.zeros(BATCH, 0, dtype=torch.int32),
            points=torch.zeros(BATCH, 0, dtype=torch.float64),
            betas=torch.zeros(BATCH, 1, 0, dtype=torch.float64),
            alphas=alphas.expand(BATCH, -1, -1).contiguous(),
            ranges=self.bounding.root_ranges(BATCH),
            margin=torch.full((BATCH,), -torch.inf, dtype=torch.float64),
        )


def _inside(batch: DomainBatch, features: Tensor) -> Tensor:
    """``[B, P]``: the points, features ``[P, T]``, that meet all splits of each subproblem."""
    meets = torch.ones(batch.count, len(features), dtype=torch.bool)
    for b in range(batch.count):
        for code, point in zip(batch.splits[b].tolist(), batch.points[b].tolist(), strict=True):
            if code:
                value = features[:, abs(code) - 1]
                meets[b] &= value >= point if code > 0 else value <= point
    return meets


def _points(tree: _Tree, count: int = 40_000) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 2 - 1
    return torch.cat([tree.witnesses, drawn])


def _smallest(tree: _Tree, batch: DomainBatch) -> Tensor:
    """Smallest sampled ``row . y`` of each subproblem."""
    features, values = tree.values(_points(tree))
    inside = _inside(batch, features)
    assert bool(inside.any(dim=1).all())
    return torch.where(inside, values, torch.inf).amin(dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["uniform", "opt"])
def test_bounds_hold_on_every_point_that_meets_the_splits(kind: str, method: str) -> None:
    for seed in range(2):
        tree = _Tree(kind, seed, method)
        smallest = _smallest(tree, tree.batch)
        for iterations in (0, 20):
            options = replace(EFFORT, iterations=iterations)
            found = tree.bounding.optimize(tree.batch, options, stop_early=False)
            lower = found.margin + tree.bounding.thresholds(found)[0]
            assert bool((lower <= smallest + 1e-9).all()), (seed, iterations)


@pytest.mark.parametrize("kind", ["sigmoid", "tanh"])
def test_multipliers_tighten_and_a_wrong_side_or_point_would_be_seen(kind: str) -> None:
    tree = _Tree(kind, 1)
    without = tree.bounding.optimize(
        tree.batch, replace(EFFORT, beta_rate=0.0), stop_early=False
    ).margin
    found = tree.bounding.optimize(tree.batch, EFFORT, stop_early=False)
    assert bool((found.margin > without + 1e-3).any())
    smallest = _smallest(tree, tree.batch)
    problem = tree.problem(found)
    for wrong in (
        lambda cut: replace(cut, signs=-cut.signs),
        lambda cut: replace(cut, limits=-cut.limits),
        lambda cut: replace(cut, limits=cut.limits.flip(0)),
    ):
        cuts = {index: wrong(cut) for index, cut in problem.cuts.items()}
        broken = optimize_subproblems(
            replace(problem, cuts=cuts),
            replace(EFFORT, beta_rate=1.0),
            lambda lower: torch.ones_like(lower, dtype=torch.bool),
            never,
        )
        assert bool((broken.lower[0] > smallest).any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["uniform", "opt"])
def test_the_children_of_every_feature_cover_their_parent(kind: str, method: str) -> None:
    tree = _Tree(kind, 2, method, depth=4)
    features, _ = tree.values(_points(tree, 4000))
    parent = _inside(tree.batch, features)
    is_open = tree.bounding.open(tree.batch, tree.bounding.signs(tree.batch))
    for number in range(tree.features.total):
        feature = torch.full((BATCH,), number)
        chosen = is_open[:, number].nonzero().squeeze(1)
        one, other = (
            tree.split(tree.batch, feature, torch.full_like(feature, side)).select(chosen)
            for side in (1, -1)
        )
        covered = _inside(one, features) | _inside(other, features)
        assert torch.equal(covered, parent[chosen])
        for batch in (one, other):
            problem = tree.problem(batch)
            for bounds in problem.bounds.values():
                assert bool((bounds.lower <= bounds.upper).all())


def test_the_union_of_the_childrens_proofs_is_one_of_the_parent() -> None:
    """What both children exclude holds on all points of the parent."""
    tree = _Tree("tanh", 3, depth=3)
    features, values = tree.values(_points(tree))
    parent = _inside(tree.batch, features)
    feature = torch.full((BATCH,), 1)
    children = [
        tree.bounding.optimize(
            tree.split(tree.batch, feature, torch.full_like(feature, side)),
            EFFORT,
            stop_early=False,
        )
        for side in (1, -1)
    ]
    proven = torch.minimum(children[0].margin, children[1].margin)
    proven = proven + tree.bounding.thresholds(tree.batch)[0]
    smallest = torch.where(parent, values, torch.inf).amin(dim=1)
    assert bool((proven <= smallest + 1e-9).all())


def test_of_several_splits_the_tightest_counts_and_holds_the_multiplier() -> None:
    tree = _Tree("tanh", 0, depth=0)
    batch = tree.batch.select(torch.tensor([0]))
    for code_point in ((1, -0.5), (-1, 0.75), (1, 0.25), (-1, 0.5), (1, 0.0)):
        side, point = code_point
        deeper = batch.widen(int(batch.depth[0]) + 1)
        at = int(batch.depth[0])
        deeper.splits[0, at], deeper.points[0, at] = side * 3, point  # feature 2
        batch = replace(deeper, depth=batch.depth + 1)
    cuts = Cuts.of(batch, tree.features.total, tree.bounding.root.box.lower)
    assert float(cuts.lower[0, 2]) == 0.25
    assert float(cuts.upper[0, 2]) == 0.5
    assert int(torch.isfinite(cuts.lower).sum()) == int(torch.isfinite(cuts.upper).sum()) == 1
    betas = torch.tensor([[[0.0, 4.0, 3.0, 4.0, 1.0]]], dtype=torch.float64)
    table = spread(tree.features, replace(batch, betas=betas), tree.bounding.root.box.lower)
    first = tree.features.spans[0].activation
    assert table[first][:, 0, 0, 2].tolist() == [3.0, 4.0]
    again = collect(tree.features, batch, table)
    assert again[0, 0].tolist() == [3.0, 4.0, 3.0, 4.0, 3.0]


@pytest.mark.parametrize("kind", ["sigmoid", "tanh"])
def test_a_childs_tangents_are_its_parents_where_they_still_can_be(kind: str) -> None:
    tree = _Tree(kind, 0, depth=0)
    span = tree.features.spans[0]
    operator = tree.features.graph.nodes[span.activation].operator
    assert isinstance(operator, Activation)
    bounds = tree.bounding.root.bounds[span.source]
    generator = torch.Generator().manual_seed(0)
    alpha = torch.rand(2, *bounds.lower.shape, generator=generator, dtype=torch.float64)
    same = operator.carry_alpha(alpha, bounds, bounds)
    start = operator.initial_alpha(operator.relax(bounds, None))
    kept = (same - alpha).abs() < 1e-9
    assert bool((kept | (same == start)).all())  # CROWN's own where no tangent is used
    assert bool(kept.any())
    middle = bounds.center
    for child in (replace(bounds, lower=middle), replace(bounds, upper=middle)):
        carried = operator.carry_alpha(alpha, bounds, child)
        assert bool(((carried >= 0) & (carried <= 1)).all())
        before = operator.lines(operator.relax(bounds, None), alpha.unsqueeze(1))
        after = operator.lines(operator.relax(child, None), carried.unsqueeze(1))
        shared = (carried > 0) & (carried < 1) & (carried != start)
        for half, name in enumerate(("lower_slope", "upper_slope")):
            own = shared[half]
            old, new = getattr(before, name)[0][own], getattr(after, name)[0][own]
            torch.testing.assert_close(new, old, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["uniform", "opt"])
def test_the_answer_is_right_just_beside_the_sampled_minimum(kind: str, method: str) -> None:
    module = _network(kind, 4)
    network = network_of(module, (2,))
    grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 401)] * 2)
    outputs = network.forward(grid).detach()
    least = float((outputs[:, 0] - outputs[:, 1]).min())
    settings = replace(SETTINGS, point_method=method, batch_size=64, beta=EFFORT)
    holds = decide(network, _region(least - 0.05), settings)
    assert holds.ending is Ending.PROVEN
    broken = decide(network, _region(least + 1e-3), settings)
    assert broken.ending is Ending.VIOLATED


def test_bounds_alone_leave_open_what_splits_at_points_prove() -> None:
    """Otherwise the test above would not need them."""
    needed = 0
    for kind in KINDS:
        network = network_of(_network(kind, 4), (2,))
        grid = torch.cartesian_prod(*[torch.linspace(-1, 1, 401)] * 2)
        outputs = network.forward(grid).detach()
        least = float((outputs[:, 0] - outputs[:, 1]).min())
        needed += not verify_region(network, _region(least - 0.05), BoundSettings()).proven
    assert needed >= 2


def test_what_floating_point_cannot_divide_is_left_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A box narrower than rounding, its value at the threshold, nobody to confirm: not proven."""
    network = network_of(_network("tanh", 0), (2,))
    point = [0.3, -0.2]
    with torch.no_grad():
        value = network.forward(torch.tensor([point]))[0]
    where = region(
        point, [v + 1e-7 for v in point], at_most([1.0, -1.0], float(value[0] - value[1]))
    )
    monkeypatch.setattr(
        "complete_verifier.bab.context.BabContext.try_points", lambda self, points: None
    )
    found = decide(network, where, replace(SETTINGS, max_iterations=50))
    assert found.ending is Ending.STUCK
