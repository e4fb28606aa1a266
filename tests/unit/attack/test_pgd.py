"""The attack finds what is there, reports nothing that is not, and always gives the same answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.pgd import AttackResult, pgd_attack
from complete_verifier.attack.settings import AttackSettings, LossMode, StartMode
from complete_verifier.config.attack import AttackConfig
from complete_verifier.specification import Region


def _attack(forward, region: Region, *, seed: int = 0, **options: object) -> AttackResult:
    names = ("out_of_time", "accept")
    arguments = {name: options.pop(name) for name in names if name in options}
    generator = torch.Generator().manual_seed(seed)
    return pgd_attack(forward, region, AttackSettings(**options), generator, **arguments)


def _identity(x: Tensor) -> Tensor:
    return x


def _planted(build, seed: int) -> tuple[object, Region]:
    """A network and a threshold on its first output far below what 20000 random points reach."""
    network = build.random_mlp([40, 16, 16, 3], seed)
    points = torch.rand(20000, 40, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    reached = network.forward(points)[:, 0]
    threshold = float(reached.min() - reached.std())
    return network, build.region([-1.0] * 40, [1.0] * 40, ([[1, 0, 0]], [threshold]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start_mode", list(StartMode))
def test_finds_a_violation_that_uniform_sampling_does_not(build, seed, start_mode) -> None:
    network, region = _planted(build, seed)
    result = _attack(network.forward, region, start_mode=start_mode)
    assert result.candidate is not None
    box = SearchBox.of(region)
    assert box is not None and box.holds(result.candidate)
    outputs = network.forward(torch.from_numpy(result.candidate)[None])[0].numpy()
    assert region.violated_by(outputs)


@pytest.mark.parametrize("mode", list(LossMode))
def test_finds_a_conjunction_inside_a_thin_shell(build, mode) -> None:
    """|y - 0.3| <= 1e-3 per output: no corner and few random points satisfy it."""
    rows = np.vstack([np.eye(3), -np.eye(3)])
    region = build.region([-1.0] * 3, [1.0] * 3, (rows, [0.301] * 3 + [-0.299] * 3))
    result = _attack(lambda x: 2 * x, region, loss_mode=mode)
    if mode is LossMode.HINGE:
        assert result.candidate is not None
        assert np.allclose(2 * result.candidate, 0.3, atol=1.1e-3)
    else:  # opposite rows cancel in a sum; the mode is there for what α,β-CROWN calls by that name
        assert result.candidate is None


def test_one_satisfiable_clause_among_many_is_found_in_any_order(build) -> None:
    impossible = ([[1.0, 0.0]], [-5.0])
    possible = ([[0.0, 1.0]], [-0.99])
    for clauses in ([impossible, impossible, possible], [possible, impossible, impossible]):
        region = build.region([-1.0, -1.0], [1.0, 1.0], *clauses)
        assert _attack(_identity, region).candidate is not None


def test_nothing_is_reported_where_nothing_is_violated(build) -> None:
    region = build.region([-1.0, -1.0], [1.0, 1.0], ([[1.0, 1.0]], [-2.5]))
    result = _attack(_identity, region)
    assert result.candidate is None
    assert result.best_margin == 0.5  # the corner (-1, -1), exactly
    assert result.steps_done == 100


def test_inputs_of_very_different_widths_are_all_searched(build) -> None:
    """Field case 7: widths 1e-6 … 1e-4 feeding weights of 1e6; all three must move at once."""
    lower, width = np.array([0.2, 0.5, -0.4]), np.array([1e-6, 1e-5, 1e-4])
    weight = np.diag([1e6, 1e5, 1e4])  # each output spans [0, 1]
    network = build.mlp((weight, -weight @ lower))
    region = build.region(lower, lower + width, ([[1.0, -1.0, 1.0]], [-0.8]))
    result = _attack(network.forward, region)
    assert result.candidate is not None
    box = SearchBox.of(region)
    assert box is not None and box.holds(result.candidate)


def test_the_answer_does_not_depend_on_the_unit_of_the_outputs(build) -> None:
    """Field case 12: last layer and threshold times 2**13."""
    network, region = _planted(build, 3)
    (clause,) = region.clauses
    large = build.region(
        region.lower, region.upper, (clause.coefficients.tolist(), clause.rhs * 2.0**13)
    )
    one = _attack(network.forward, region)
    other = _attack(lambda x: network.forward(x) * 2.0**13, large)
    assert one.candidate is not None and other.candidate is not None
    assert np.array_equal(one.candidate, other.candidate)


def test_the_same_seed_gives_the_same_search_and_another_seed_another(build) -> None:
    network, region = _planted(build, 1)
    results = [_attack(network.forward, region, seed=seed, steps=3) for seed in (7, 7, 8)]
    assert results[0].best_margin == results[1].best_margin != results[2].best_margin
    assert results[0].steps_done == results[1].steps_done


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_satisfy_nothing(build, value) -> None:
    region = build.region([-1.0], [1.0], ([[1.0]], [0.0]), ([[-1.0]], [0.0]))
    result = _attack(lambda x: x * 0 + value, region, steps=5)
    assert result.candidate is None
    assert result.best_margin == math.inf


def test_a_finite_violation_beside_a_nan_is_found(build) -> None:
    """sqrt is nan on half the box; the points there are redrawn until they leave it."""
    region = build.region([-1.0], [1.0], ([[-1.0]], [-0.95]))
    result = _attack(torch.sqrt, region)
    assert result.candidate is not None
    assert result.candidate[0] >= np.float32(0.9)


def test_an_overflowing_gradient_keeps_its_sign(build) -> None:
    """As behind a chain of weights of 1e20 (field case 5)."""
    region = build.region([-1.0], [1.0], ([[1.0]], [-0.999]))
    result = _attack(_steep, region)
    assert result.candidate is not None and np.isfinite(result.candidate).all()


def _steep(x: Tensor) -> Tensor:
    """x, with an infinite gradient."""

    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    return Steep.apply(x)


def test_dead_starting_points_are_redrawn(build) -> None:
    """A ReLU that is on in 1 % of the box: without redrawing, 30 starts would rarely meet it."""

    def forward(x: Tensor) -> Tensor:
        return torch.relu(x - 0.98)

    region = build.region([-1.0], [0.9999], ([[-1.0]], [-0.015]))
    for seed in range(3):
        assert _attack(forward, region, seed=seed, restarts=4).candidate is not None


def test_a_refused_candidate_lets_the_search_go_on_to_a_better_one(build) -> None:
    """A bowl whose bottom no start hits: margins keep falling, the fourth candidate is taken."""
    bottom = torch.tensor([0.31, -0.17, 0.53])
    region = build.region([-1.0] * 3, [1.0] * 3, ([[1.0]], [1.5]))
    asked: list[np.ndarray] = []

    def accept(point: np.ndarray) -> bool:
        asked.append(point)
        return len(asked) > 3

    def forward(x: Tensor) -> Tensor:
        return (x - bottom).square().sum(dim=1, keepdim=True)

    result = _attack(forward, region, accept=accept)
    margins = [float(forward(torch.from_numpy(point)[None])) for point in asked]
    assert len(asked) == 4 and margins == sorted(margins, reverse=True)
    assert result.candidate is not None and np.array_equal(result.candidate, asked[-1])


def test_a_search_whose_candidates_all_fail_reports_none(build) -> None:
    region = build.region([-1.0] * 3, [1.0] * 3, ([[1.0, 1.0, 1.0]], [0.5]))
    result = _attack(_identity, region, accept=lambda point: False)
    assert result.candidate is None and result.steps_done == 100


def test_without_early_stop_the_search_uses_all_steps(build) -> None:
    region = build.region([-1.0], [1.0], ([[1.0]], [0.5]))
    result = _attack(_identity, region, early_stop=False)
    assert result.candidate is not None
    assert result.steps_done == 100 and result.best_margin == -1.5


def test_the_clock_is_asked_before_every_step(build) -> None:
    region = build.region([-1.0, -1.0], [1.0, 1.0], ([[1.0, 1.0]], [-2.5]))
    asked = iter([False] * 7 + [True])
    result = _attack(_identity, region, out_of_time=lambda: next(asked))
    assert result.out_of_time and result.steps_done == 7


@pytest.mark.parametrize("start_mode", list(StartMode))
@pytest.mark.parametrize(("batch_size", "largest"), [(100, 90), (40, 30), (7, 7), (1, 1)])
def test_no_call_exceeds_the_batch_size(build, batch_size, largest, start_mode) -> None:
    sizes: list[int] = []

    def forward(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return x

    clauses = [([[1.0, 0.0]], [-5.0])] * 2 + [([[0.0, 1.0]], [-1.0])]
    region = build.region([-1.0, -1.0], [1.0, 1.0], *clauses)
    result = _attack(forward, region, batch_size=batch_size, start_mode=start_mode, steps=4)
    assert max(sizes) == largest
    assert result.candidate is not None


def test_a_point_box_is_decided_by_one_forward_pass(build) -> None:
    """Field case 27, with a decimal that is no float32."""
    region = build.region([0.1, 0.5], [0.1, 0.5], ([[1.0, 1.0]], [0.61]))
    result = _attack(_identity, region)
    assert result.candidate is not None
    assert result.candidate.tolist() == [float(np.float32(0.1)), 0.5]
    assert result.steps_done == 0


def test_a_box_between_two_float32_neighbours_is_searched_exactly(build) -> None:
    """Three float32 numbers wide; only the last satisfies the clause."""
    numbers = [np.float32(0.5)]
    for _ in range(2):
        numbers.append(np.nextafter(numbers[-1], np.float32(1)))
    region = build.region(
        [float(numbers[0])], [float(numbers[2])], ([[-1.0]], [-float(numbers[2])])
    )
    result = _attack(_identity, region)
    assert result.candidate is not None and result.candidate[0] == numbers[2]


def test_empty_boxes_and_empty_properties_have_no_candidate(build) -> None:
    assert _attack(_identity, build.region([1.0], [0.0], ([[1.0]], [9.0]))).candidate is None
    assert _attack(_identity, build.region([0.0], [1.0])).candidate is None


def test_settings_follow_the_config_keys() -> None:
    assert AttackSettings.from_config(AttackConfig()) == AttackSettings()
    section = AttackConfig(
        pgd_steps=7,
        pgd_restarts=3,
        pgd_alpha=0.01,
        pgd_alpha_scale=True,
        pgd_lr_decay=0.9,
        pgd_early_stop=False,
        pgd_batch_size=5,
        pgd_loss_mode="sum",
        attack_mode="diversed_PGD",
    )
    assert AttackSettings.from_config(section) == AttackSettings(
        steps=7,
        restarts=3,
        step_size=0.01,
        step_relative_to_width=True,
        step_decay=0.9,
        early_stop=False,
        batch_size=5,
        loss_mode=LossMode.SUM,
        start_mode=StartMode.DIVERSIFIED,
    )


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"restarts": 0}, r"restarts: expected >= 1, got 0"),
        ({"step_size": 0.0}, r"step_size: expected > 0, got 0\.0"),
        ({"step_decay": 1.5}, r"step_decay: expected in \(0, 1\], got 1\.5"),
    ],
)
def test_impossible_settings_are_refused(option, text) -> None:
    with pytest.raises(ValueError, match=text):
        AttackSettings(**option)
