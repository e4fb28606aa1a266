"""Input splitting decides regions as exact minimisation does, whatever its manner.

The exact minimum comes from a mixed-integer program. Attacks are off where a wrong proof is looked
for, so that no attack hides one. A failure is a wrong verdict, or one that depends on batch size,
order or heuristic.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.errors import SoundnessError
from complete_verifier.bab import input_branching, stop
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.input_bounds import Bounded, InputBounds
from complete_verifier.bab.input_pool import Boxes, halve
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.outcome import Ending
from complete_verifier.specification import Clause, Region
from tests.unit.bab_input.input_cases import FEW_ROUNDS, NO_ATTACK, decide, problem
from tests.unit.bounds.region_cases import at_most, linear, mlp, network_of, region

GAP = 0.05
MANNERS = {
    "sb": InputSplitSettings(heuristic="sb"),
    "sb-sum": InputSplitSettings(heuristic="sb", sb_sum=True, sb_margin_weight=0.0),
    "naive": InputSplitSettings(heuristic="naive"),
    "brute-force": InputSplitSettings(heuristic="brute-force"),
    "brute-force-always": InputSplitSettings(heuristic="brute-force", bf_period=1),
    "alpha-crown": InputSplitSettings(bounding="alpha-crown", alpha=AlphaOptions(iterations=2)),
    "crown-ibp": InputSplitSettings(bounding="crown-ibp"),
    "ibp": InputSplitSettings(bounding="ibp", heuristic="naive"),
    "plain": InputSplitSettings(ibp_enhancement=False, compare_with_old_bounds=False),
}


@pytest.mark.parametrize("heuristic", ["brute-force", "sb"])
@pytest.mark.parametrize("held", [4, 12, 40])
def test_where_memory_is_short_few_boxes_are_not_split_into_many(
    heuristic: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for one box's halves along each input is enough, however few boxes there are."""
    bound = InputBounds.bound

    def limited(self: InputBounds, boxes: Boxes) -> Bounded:
        if boxes.count > held:
            raise MemoryError("no more")
        return bound(self, boxes)

    monkeypatch.setattr(InputBounds, "bound", limited)
    network, where = problem(7, GAP)
    manner = InputSplitSettings(heuristic=heuristic, adv_check=-1)
    outcome = decide(network, where, manner, BabSettings(batch_size=64, max_iterations=200))
    assert outcome.ending is Ending.PROVEN


@pytest.mark.parametrize("heuristic", ["brute-force", "sb"])
def test_blocks_together_do_no_more_than_a_batch(
    heuristic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boxes that are few in a block may be many in the batch that is cut into these blocks."""
    network, where = problem(7, -GAP)
    bab = BabSettings(batch_size=128, max_iterations=20, synchronous=True)
    visited = [0]
    monkeypatch.setattr(stop, "status", lambda tally, *_: visited.append(tally.visited) or "")
    decide(network, where, InputSplitSettings(heuristic=heuristic, adv_check=-1), bab)
    assert visited[-1] > 128
    assert max(after - before for before, after in pairwise(visited)) <= 128


@pytest.mark.parametrize("enlarge", [False, True])
def test_a_batch_of_boxes_grows_where_it_may(
    enlarge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, where = problem(7, -GAP)
    bab = BabSettings(batch_size=8, max_iterations=20, enlarge=enlarge)
    taken = []
    monkeypatch.setattr(stop, "status", lambda tally, *_: taken.append(tally.taken) or "")
    monkeypatch.setattr(InputBounds, "tile", 16)
    decide(network, where, InputSplitSettings(heuristic="sb", adv_check=-1), bab)
    # Two tiles of 16 children, or the four parents of the batch.
    assert max(taken) == (16 if enlarge else 4)


@pytest.mark.parametrize("manner", MANNERS)
def test_proven_exactly_where_the_smallest_margin_is_positive(manner: str) -> None:
    for seed in range(4):
        network, where = problem(seed, GAP)
        outcome = decide(network, where, replace(MANNERS[manner], adv_check=-1))
        assert outcome.ending is Ending.PROVEN
        assert outcome.domains_left == 0
        assert outcome.lower_bound == float("inf")
        network, where = problem(seed, -GAP)
        outcome = decide(network, where, replace(MANNERS[manner], adv_check=-1), SHORT)
        assert outcome.ending is Ending.MAX_ITERATIONS
        assert outcome.lower_bound <= -GAP + 1e-4
        assert outcome.domains_left > 0
        outcome = decide(network, where, MANNERS[manner])
        assert outcome.ending is Ending.VIOLATED
        assert outcome.counterexample is not None


SHORT = BabSettings(batch_size=64, max_iterations=12)


def test_proofs_take_splits_here() -> None:
    """The problems above would teach nothing if the root's bound decided them."""
    visited = [decide(*problem(seed, GAP)).domains_visited for seed in range(4)]
    assert min(visited) > 0
    assert max(visited) > 10


def test_batch_size_and_order_do_not_change_the_verdict() -> None:
    for gap, ending in ((GAP, Ending.PROVEN), (-GAP, Ending.VIOLATED)):
        network, where = problem(3, gap)
        for batch_size in (1, 2, 7, 1000):
            for worst_first in (True, False):
                bab = BabSettings(batch_size=batch_size, worst_first=worst_first)
                outcome = decide(network, where, InputSplitSettings(), bab)
                assert outcome.ending is ending


def test_two_runs_are_the_same() -> None:
    network, where = problem(2, 1e-3)
    runs = [decide(network, where, InputSplitSettings()) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].domains_visited > 5
    network, where = problem(2, -GAP)
    runs = [decide(network, where, NO_ATTACK, SHORT) for _ in range(2)]
    assert runs[0] == runs[1]
    assert np.isfinite(runs[0].lower_bound)


def test_losing_a_child_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `test_proven_exactly…` checks fails once one half of each split is dropped."""

    def lossy(parents: Boxes, dims: Tensor) -> Boxes:
        both = halve(parents, dims)
        return both.select(torch.arange(0, both.count, 2).repeat_interleave(2))

    monkeypatch.setattr(input_branching, "halve", lossy)
    endings = set()
    for seed in range(4):
        network, where = problem(seed, -GAP)
        endings.add(decide(network, where, NO_ATTACK, SHORT).ending)
    assert Ending.PROVEN in endings


def test_conjunctions_and_disjunctions_against_a_grid() -> None:
    endings = []
    for seed in range(8):
        network, box = problem(seed, 0.0)
        axis = [np.linspace(box.lower[i], box.upper[i], 80, dtype=np.float32) for i in range(2)]
        grid = np.stack(np.meshgrid(*axis), axis=-1).reshape(-1, 2)
        grid = np.clip(grid, box.lower, box.upper).astype(np.float32)
        with torch.no_grad():
            values = network.forward(torch.from_numpy(grid)).double().numpy()
        generator = np.random.default_rng(seed)
        clauses = []
        for _ in range(3):
            rows = generator.normal(size=(2, 2))
            reached = values @ rows.T
            clauses.append(Clause(rows, np.quantile(reached, 0.08, axis=0)))
        where = Region(box.lower, box.upper, tuple(clauses))
        least = where.margins(values).min()
        blind = decide(network, where, NO_ATTACK, SHORT).ending
        seeing = decide(network, where, InputSplitSettings()).ending
        if least <= 0:
            assert blind is not Ending.PROVEN
            assert seeing is Ending.VIOLATED
        elif least > 0.01:
            assert seeing is Ending.PROVEN
        endings.append(seeing)
    assert {Ending.PROVEN, Ending.VIOLATED} <= set(endings)


def test_boundary_of_a_single_relu_counts() -> None:
    """Output range [-0.5, 0.5]; the property Y_0 >= 0 is violated (field case 10)."""
    net = nn.Sequential(linear([[0.5, 0.5]], [0.0]), nn.ReLU(), linear([[1.0]], [-0.5]))
    network = network_of(net, (2,))
    for strict in (False, True):
        where = region([-1.0, -1.0], [1.0, 1.0], at_most([1.0], 0.0, strict))
        assert decide(network, where, InputSplitSettings()).ending is Ending.VIOLATED
        assert decide(network, where, NO_ATTACK, SHORT).ending is not Ending.PROVEN
    # No proof rests on the boundary itself, where rounding decides; just beside it one does.
    touching = region([-1.0, -1.0], [1.0, 1.0], at_most([1.0], -0.5, strict=True))
    assert decide(network, touching, NO_ATTACK, SHORT).ending is not Ending.PROVEN
    beside = region([-1.0, -1.0], [1.0, 1.0], at_most([1.0], -0.50001, strict=True))
    assert decide(network, beside, InputSplitSettings()).ending is Ending.PROVEN
    touching = region([-1.0, -1.0], [1.0, 1.0], at_most([1.0], -0.5))
    assert decide(network, touching, InputSplitSettings()).ending is Ending.VIOLATED


def test_net_that_ends_in_a_negated_relu() -> None:
    """Unsafe is Y_0 >= 0: only where the last ReLU is inactive (field case 11)."""
    torch.manual_seed(0)
    body, last = mlp(1, 6, 6), linear([[1.0, -1.0, 0.5, -0.5, 1.0, -1.0]], [0.0])
    line = torch.linspace(-1, 1, 2001).unsqueeze(1)
    with torch.no_grad():
        least = last(torch.relu(body(line))).min()
        for target, ending in ((-0.01, Ending.VIOLATED), (0.01, Ending.PROVEN)):
            last.bias.fill_(target - float(least))
            net = nn.Sequential(*body, nn.ReLU(), last, nn.ReLU(), linear([[-1.0]], [0.0]))
            where = region([-1.0], [1.0], at_most([-1.0], 0.0))
            assert decide(network_of(net, (1,)), where, InputSplitSettings()).ending is ending


def test_huge_boxes_are_never_proven_wrongly() -> None:
    """Field cases 2 and 5: bounds that overflow or cross say nothing."""
    torch.manual_seed(1)
    for size in (1e6, 1e20, 1e30, 3e38):
        network = network_of(mlp(2, 6, 6, 1), (2,))
        # At a corner the output is hugely negative or hugely positive; both are unsafe.
        clauses = (at_most([1.0], -1.0), at_most([-1.0], -1.0))
        where = region([-size, -size], [size, size], *clauses)
        try:
            ending = decide(network, where, NO_ATTACK, SHORT).ending
        except SoundnessError:
            continue
        assert ending is Ending.MAX_ITERATIONS
    layers = [linear([[1e20]], [0.0]), nn.ReLU()] * 3
    network = network_of(nn.Sequential(*layers, linear([[1.0]], [1.0])), (1,))
    outcome = decide(network, region([-1.0], [1.0], at_most([1.0], 0.5)), NO_ATTACK, SHORT)
    assert outcome.ending is not Ending.PROVEN


@pytest.mark.parametrize("width", [1e-6, 1e-5, 1e-4])
def test_tiny_inputs_with_huge_weights_are_split(width: float) -> None:
    """Violated in the middle third only; no width may count as fixed (field case 7)."""
    # |x - centre| as two ReLUs, times 1e6: zero in the centre, about 1e6 * width / 2 at the ends.
    first = linear([[1e6, 0.0], [-1e6, 0.0]], [-1e6 * width / 2, 1e6 * width / 2])
    net = nn.Sequential(first, nn.ReLU(), linear([[1.0, 1.0]], [0.0]))
    network = network_of(net, (2,))
    threshold = 1e6 * width / 6
    where = region([0.0, -1.0], [width, 1.0], at_most([1.0], threshold))
    assert decide(network, where, InputSplitSettings()).ending is Ending.VIOLATED
    off_centre = region([width * 0.8, -1.0], [width, 1.0], at_most([1.0], threshold))
    assert decide(network, off_centre, InputSplitSettings()).ending is Ending.PROVEN


def test_fixed_inputs_are_never_split() -> None:
    network, where = problem(1, GAP)
    line = Region(np.array([where.lower[0], where.upper[1]]), where.upper, where.clauses)
    for heuristic in ("naive", "sb", "brute-force"):
        settings = InputSplitSettings(heuristic=heuristic, adv_check=-1)
        assert decide(network, line, settings).ending is Ending.PROVEN


def test_what_can_be_neither_excluded_nor_split_is_stuck() -> None:
    """The smallest value equals the threshold, at one point; with attacks off nobody sees it."""
    net = nn.Sequential(linear([[1.0], [-1.0]], [0.0, 0.0]), nn.ReLU(), linear([[1.0, 1.0]], [0.0]))
    network = network_of(net, (1,))
    low, high = np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(2.0))
    where = region([float(low)], [float(high)], at_most([1.0], 1.0))
    outcome = decide(network, where)
    assert outcome.ending is Ending.STUCK
    assert outcome.domains_left == 1
    assert outcome.lower_bound <= 0
    assert decide(network, where, InputSplitSettings()).ending is Ending.VIOLATED


def test_empty_and_trivial_regions() -> None:
    network, where = problem(0, -GAP)
    empty = Region(where.upper, where.lower, where.clauses)
    assert decide(network, empty).ending is Ending.PROVEN
    assert decide(network, Region(where.lower, where.upper, ())).ending is Ending.PROVEN
    always = Clause(np.zeros((0, 2)), np.zeros(0))
    outcome = decide(network, Region(where.lower, where.upper, (always,)))
    assert outcome.ending is Ending.VIOLATED


def test_limits_end_the_search_with_what_is_known() -> None:
    network, where = problem(2, -GAP)
    outcome = decide(network, where, NO_ATTACK, replace(FEW_ROUNDS, max_domains=5))
    assert outcome.ending is Ending.MAX_DOMAINS
    assert outcome.domains_left > 5
    asked = []

    def out_of_time(ahead_seconds: float) -> bool:
        asked.append(ahead_seconds)
        return len(asked) > 8

    bounds = BoundOptions(out_of_time=out_of_time)
    outcome = decide(network, where, NO_ATTACK, FEW_ROUNDS, bounds)
    assert outcome.ending is Ending.TIMEOUT
    # Asked at the end of each round and before each of its tiles, which are few.
    assert 2 <= outcome.rounds <= 4
    assert 9 <= len(asked) <= 12
    outcome = decide(network, where, NO_ATTACK, replace(FEW_ROUNDS, max_iterations=2))
    assert (outcome.ending, outcome.rounds) == (Ending.MAX_ITERATIONS, 2)


def test_a_threshold_demands_more_than_zero() -> None:
    network, where = problem(1, GAP)
    enough = replace(FEW_ROUNDS, threshold=GAP / 2, max_iterations=30)
    assert decide(network, where, NO_ATTACK, enough).ending is Ending.PROVEN
    too_much = replace(enough, threshold=2 * GAP)
    assert decide(network, where, NO_ATTACK, too_much).ending is not Ending.PROVEN


def test_crossing_bounds_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def crossed(self: InputBounds, boxes: Boxes) -> None:
        raise SoundnessError("planted")

    monkeypatch.setattr(InputBounds, "_finite_tile", crossed)
    with pytest.raises(SoundnessError, match="planted"):
        decide(*problem(0, GAP))


def test_attack_waits_for_the_subproblems_it_was_told_to() -> None:
    network, where = problem(3, -GAP)
    early = decide(network, where, InputSplitSettings())
    late = decide(network, where, InputSplitSettings(adv_check=500))
    assert early.ending is late.ending is Ending.VIOLATED
    assert early.domains_visited < 500 <= late.domains_visited
