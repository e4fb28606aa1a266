"""Regions that are searched together are decided as each of them would be alone.

A failure is a clause asked of a box that is not its region's, or one of its own that is not asked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact_minimum import affine_layers, minimum

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_bounds import InputBounds
from complete_verifier.bab.input_pool import halve
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.region_group import RegionGroup, region_groups
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bab_input.input_cases import FEW_ROUNDS, NO_ATTACK, context_of
from tests.unit.bounds.region_cases import at_most, mlp, network_of, outputs, region, samples

GAP = 0.05
SEEING = InputSplitSettings()
SHORT = replace(FEW_ROUNDS, max_iterations=12)
Module = torch.nn.Sequential


def module_of(seed: int) -> Module:
    torch.manual_seed(seed)
    module = mlp(2, 12, 10, 3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.0)
    return module


def some_region(module: Module, seed: int, gap: float) -> Region:
    """A box of its own, and a clause whose smallest margin in it is `gap`."""
    generator = np.random.default_rng(seed)
    center, radius = 2 * generator.normal(size=2), generator.uniform(1.0, 2.0, size=2)
    low = (center - radius).astype(np.float32).astype(np.float64)
    high = (center + radius).astype(np.float32).astype(np.float64)
    functional = generator.normal(size=3)
    least = minimum(affine_layers(module, (2,)), functional, low, high)
    return Region(low, high, (Clause(functional[None], np.array([least - gap])),))


def several(seed: int, *gaps: float) -> tuple[Network, list[Region]]:
    """A network and regions; the same boxes and functionals whatever the gaps."""
    module = module_of(seed)
    regions = [some_region(module, 10 * seed + n, gap) for n, gap in enumerate(gaps)]
    return network_of(module.float(), (2,)), regions


def decide_together(
    network: Network,
    group: RegionGroup | list[Region],
    settings: InputSplitSettings = NO_ATTACK,
) -> BabOutcome:
    group = group if isinstance(group, RegionGroup) else RegionGroup.of(group)
    limits = SHORT if settings.adv_check < 0 else FEW_ROUNDS
    return input_branch_and_bound(context_of(network, group.regions[0]), settings, limits, group)


# -- which are searched together ---------------------------------------------------------------


def boxed(*clauses: Clause, size: float = 1.0) -> Region:
    return region([-size, -size], [size, size], *clauses)


def test_regions_are_together_in_order_up_to_a_number() -> None:
    clause = at_most([1.0, 0.0], 0.0)
    regions = [boxed(clause, size=1.0 + n) for n in range(100)]
    groups = region_groups(regions)
    assert [len(group.regions) for group in groups] == [64, 36]
    assert [own for group in groups for own in group.regions] == regions
    assert all(len(group.clauses) == 1 and not group.foreign.any() for group in groups)


def test_regions_with_many_different_constraints_are_apart() -> None:
    def wide(seed: int) -> Clause:
        return Clause(np.random.default_rng(seed).normal(size=(100, 2)), np.zeros(100))

    groups = region_groups([boxed(wide(seed)) for seed in range(5)])
    assert [len(group.regions) for group in groups] == [2, 2, 1]  # 2 x 100 constraints x 2 inputs
    # The same ones again cost nothing more.
    groups = region_groups([boxed(wide(seed % 2), size=1.0 + seed) for seed in range(5)])
    assert [len(group.regions) for group in groups] == [5]
    # However many one region has.
    assert len(region_groups([boxed(*map(wide, range(9)))])) == 1


def test_regions_without_points_are_left_out_and_always_unsafe_ones_alone() -> None:
    clause = at_most([1.0, 0.0], 0.0)
    always = Clause(np.zeros((0, 2)), np.zeros(0))
    empty = region([1.0, 1.0], [-1.0, -1.0], clause)
    first, last = boxed(clause), boxed(clause, size=2.0)
    unsafe = boxed(always, clause)
    groups = region_groups([empty, first, unsafe, boxed(), last])
    assert [group.regions for group in groups] == [(first,), (unsafe,), (last,)]
    assert region_groups([empty, boxed()]) == []


def test_equal_clauses_count_once_and_different_bounds_are_different() -> None:
    one, same = at_most([1.0, 0.0], 0.0), at_most([1.0, 0.0], 0.0)
    strict, higher = at_most([1.0, 0.0], 0.0, strict=True), at_most([1.0, 0.0], 0.5)
    group = RegionGroup.of([boxed(one, strict), boxed(higher), boxed(same, higher)])
    assert group.clauses == (same, strict, higher)
    expected = [[False, False, True], [True, True, False], [False, True, False]]
    assert group.foreign.tolist() == expected


# -- what a box keeps of its region ------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("period", [1, 4])
def test_descendants_are_of_their_roots_region(number: int, period: int) -> None:
    network = network_of(module_of(0).float(), (2,))
    clauses = [at_most([1.0, 0.0, 0.0], float(n)) for n in range(number)]
    regions = [boxed(clause, size=1.0 + n) for n, clause in enumerate(clauses)]
    group = RegionGroup.of(regions)
    roots = group.roots(group.box(network.graph), period)
    assert group.region_of(roots).tolist() == list(range(number))
    assert bool((roots.depth % period == 0).all())
    whose, boxes = torch.arange(number), roots
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        dims = torch.randint(2, (boxes.count,), generator=generator)
        boxes, whose = halve(boxes, dims), whose.repeat_interleave(2)
        assert torch.equal(group.region_of(boxes), whose)
        assert boxes.path.unique().numel() == boxes.key.unique().numel() == boxes.count
        if boxes.count > 200:
            kept = torch.randperm(boxes.count, generator=generator)[:100]
            boxes, whose = boxes.select(kept), whose[kept]
    inside = torch.tensor([own.lower[0] for own in regions])[whose]
    assert bool((boxes.lower.amin(dim=1) >= inside).all())
    own = torch.zeros(boxes.count, number, dtype=torch.bool)
    own[torch.arange(boxes.count), whose] = True
    assert torch.equal(~boxes.excluded, own)


# -- verdicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_together_they_are_proven_exactly_where_each_smallest_margin_is_positive(
    seed: int,
) -> None:
    outcome = decide_together(*several(seed, GAP, GAP, GAP))
    assert (outcome.ending, outcome.domains_left) == (Ending.PROVEN, 0)
    assert outcome.domains_visited > 0  # roots alone would teach nothing
    for violated in range(3):
        gaps = [-GAP if n == violated else GAP for n in range(3)]
        network, regions = several(seed, *gaps)
        blind = decide_together(network, regions)
        assert blind.ending is Ending.MAX_ITERATIONS and blind.lower_bound <= -GAP + 1e-4
        found = decide_together(network, regions, SEEING)
        assert found.ending is Ending.VIOLATED
        point = found.counterexample
        assert point is not None and regions[violated].contains_float32(point.inputs)


def crosswise_unsafe() -> list[tuple[Network, list[Region]]]:
    """Pairs of safe regions where the first one's clause holds at points of the second's box."""
    pairs = [several(seed, GAP, GAP) for seed in range(12)]

    def crosses(network: Network, regions: list[Region]) -> bool:
        asked = replace(regions[1], clauses=regions[0].clauses)
        return bool((asked.margins(outputs(network, samples(asked, 4000))) < -GAP).any())

    return [pair for pair in pairs if crosses(*pair)]


def test_a_clause_says_nothing_of_another_regions_box() -> None:
    pairs = crosswise_unsafe()
    assert len(pairs) >= 3
    for network, regions in pairs:
        for settings in (NO_ATTACK, SEEING):
            assert decide_together(network, regions, settings).ending is Ending.PROVEN


def test_asking_every_clause_of_every_box_would_be_noticed() -> None:
    network, regions = crosswise_unsafe()[0]
    group = RegionGroup.of(regions)
    mixed = replace(group, foreign=np.zeros_like(group.foreign))
    assert decide_together(network, mixed).ending is not Ending.PROVEN


def test_leaving_out_a_regions_own_clause_would_be_noticed() -> None:
    """The false proof that `test_together_they_are_proven_exactly…` would see."""
    group = RegionGroup.of((pair := several(0, GAP, -GAP))[1])
    foreign = group.foreign.copy()
    foreign[1] = True
    assert decide_together(pair[0], group).ending is Ending.MAX_ITERATIONS
    assert decide_together(pair[0], replace(group, foreign=foreign)).ending is Ending.PROVEN


def test_shared_clauses_are_asked_of_both_regions() -> None:
    for seed in range(4):
        module = module_of(seed)
        boxes = [some_region(module, 10 * seed + n, 0.0) for n in range(2)]
        functional = boxes[0].clauses[0].coefficients[0]
        layers = affine_layers(module, (2,))
        least = [minimum(layers, functional, own.lower, own.upper) for own in boxes]
        network = network_of(module.float(), (2,))
        for gap, ending in ((GAP, Ending.PROVEN), (-GAP, Ending.VIOLATED)):
            clause = Clause(functional[None], np.array([min(least) - gap]))
            regions = [replace(own, clauses=(clause,)) for own in boxes]
            assert decide_together(network, regions, SEEING).ending is ending


def test_rounds_are_fewer_than_of_one_region_after_the_other() -> None:
    network, regions = several(5, 1e-3, 1e-3, 1e-3)
    apart = [decide_together(network, [own]) for own in regions]
    together = decide_together(network, regions)
    assert {outcome.ending for outcome in (*apart, together)} == {Ending.PROVEN}
    rounds = [outcome.rounds for outcome in apart]
    assert sum(count > 1 for count in rounds) > 1
    assert together.rounds < sum(rounds)


# -- one region among others -------------------------------------------------------------------


def test_a_region_whose_bounds_overflow_leaves_the_others_theirs() -> None:
    network, regions = several(2, GAP, GAP)
    huge = region([-3e38, -3e38], [3e38, 3e38], at_most([1.0, 0.0, 0.0], -1.0))
    group = RegionGroup.of([regions[0], huge, regions[1]])
    asked = (context_of(network, huge).bounds, NO_ATTACK, 0.0)
    bounds = InputBounds(network, group, *asked)
    bounded = bounds.bound(group.roots(bounds.root, 4)).boxes
    for place, own in ((0, regions[0]), (2, regions[1])):
        alone_group = RegionGroup.of([own])
        alone = InputBounds(network, alone_group, *asked)
        expected = alone.bound(alone_group.roots(alone.root, 4)).boxes.margin[0]
        assert float(bounded.margin[place]) == pytest.approx(float(expected), abs=1e-4)
    assert float(bounded.margin[1]) == float("-inf")
    assert decide_together(network, group).ending is not Ending.PROVEN


def test_bounds_of_each_region_hold_at_its_points() -> None:
    """Whatever was bounded beside it, six splits down."""
    network, regions = several(3, 0.0, 0.0, 0.0)
    group = RegionGroup.of(regions)
    bounds = InputBounds(network, group, context_of(network, regions[0]).bounds, NO_ATTACK, 0.0)
    boxes = group.roots(bounds.root, 4)
    for _ in range(6):
        dims = (boxes.upper - boxes.lower).argmax(dim=1)
        boxes = bounds.bound(halve(boxes, dims)).boxes
        boxes = boxes.select(boxes.is_open)
    assert boxes.count > 10
    for place, number in enumerate(group.region_of(boxes).tolist()):
        own = replace(
            regions[number],
            lower=boxes.lower[place].double().numpy(),
            upper=boxes.upper[place].double().numpy(),
        )
        margins = own.margins(outputs(network, samples(own, 50)))
        assert margins.min() >= float(boxes.margin[place]) - 1e-5


def test_regions_that_cannot_be_searched() -> None:
    network, (own,) = several(0, GAP)
    always = replace(own, clauses=(Clause(np.zeros((0, 3)), np.zeros(0)),))
    assert decide_together(network, [own, always]).ending is Ending.VIOLATED
    empty = replace(own, lower=own.upper, upper=own.lower)
    group = RegionGroup.of([empty])
    context = context_of(network, own)
    assert input_branch_and_bound(context, SEEING, SHORT, group).ending is Ending.PROVEN
    windowed = replace(own, windowed=True)
    with pytest.raises(ValueError, match="unbounded"):
        decide_together(network, [own, windowed])


# -- attack ------------------------------------------------------------------------------------


def test_points_are_tried_in_the_region_that_their_box_is_of() -> None:
    """Every point is unsafe in its own region here, and none is ever confirmed."""
    network, regions = several(4, -10.0, -10.0, -10.0)
    firsts = [own.lower[0] for own in regions]
    asked: list[int] = []

    def confirm(where: Region, point: np.ndarray) -> Counterexample | None:
        assert where.contains_float32(point)
        asked.append(firsts.index(where.lower[0]))
        return None

    context = replace(context_of(network, regions[0]), confirm=confirm)
    group = RegionGroup.of(regions)
    bounds = InputBounds(network, group, context.bounds, NO_ATTACK, 0.0)
    bounded = bounds.bound(group.roots(bounds.root, 4))
    attack = InputAttack(context, group)
    assert attack.look(bounded) is None
    assert asked == [0, 1, 2]
    walked = []
    for _ in range(4):  # each in turn
        asked.clear()
        assert attack.walk(bounded.boxes) is None
        walked.append(set(asked))
    assert walked == [{0}, {1}, {2}, {0}]
    few = bounded.select(torch.tensor([2]))
    asked.clear()
    assert attack.look(few) is None and attack.walk(few.boxes) is None
    assert set(asked) == {2}
    assert attack.walk(bounded.boxes.select(torch.arange(0))) is None
