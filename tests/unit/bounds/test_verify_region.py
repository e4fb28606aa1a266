"""A region called proven holds no counterexample, whatever the method, order or size of things.

A failure means a wrong `unsat`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.errors import NonFiniteBoundError
from complete_verifier.bounds.incomplete import RegionBounds, verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import (
    at_most,
    linear,
    mlp,
    network_of,
    outputs,
    region,
    samples,
)

METHODS = ("ibp", "crown-ibp", "crown", "alpha-crown")
QUICK = BoundSettings(alpha=AlphaOptions(iterations=15))


def with_method(method: str) -> BoundSettings:
    intermediate = "ibp" if method == "crown-ibp" else "crown"
    return replace(QUICK, method=method, bounds=BoundOptions(intermediate=intermediate))


def random_problem(seed: int) -> tuple[Network, Region]:
    """Clauses whose right-hand sides lie about where CROWN's bounds do."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    network = network_of(mlp(3, 8, 8, 3), (3,))
    center, radius = generator.normal(size=3), generator.uniform(0, 0.6, size=3)
    box = region((center - radius).tolist(), (center + radius).tolist())
    values = outputs(network, samples(box, 2000))
    reach = (-0.1, 0.05, 0.2, 0.5, 1.0, 3.0)[seed % 6]
    clauses = []
    for _ in range(2):
        rows = generator.normal(size=(2, 3))
        low, high = (values @ rows.T).min(axis=0), (values @ rows.T).max(axis=0)
        clauses.append(Clause(rows, low - reach * (high - low)))
    return network, Region(box.lower, box.upper, tuple(clauses))


def test_no_proven_region_holds_a_sampled_counterexample() -> None:
    proven = dict.fromkeys(METHODS, 0)
    for seed in range(24):
        network, where = random_problem(seed)
        points = outputs(network, samples(where, 3000))
        violated = bool((where.margins(points) <= 0).any())
        results = {method: verify_region(network, where, with_method(method)) for method in METHODS}
        for method, result in results.items():
            assert not (result.proven and violated), f"seed {seed}, {method}"
            proven[method] += result.proven
        assert not (results["crown"].proven and not results["alpha-crown"].proven)
    # The problems are neither all easy nor all hopeless, and better methods prove more.
    assert 0 < proven["ibp"] < proven["crown"] < proven["alpha-crown"] < 24


def test_margins_are_lower_bounds_of_every_constraint() -> None:
    for seed in range(6):
        network, where = random_problem(100 + seed)
        values = outputs(network, samples(where, 3000))
        smallest = np.concatenate(
            [(values @ part.coefficients.T - part.rhs).min(axis=0) for part in where.clauses]
        )
        result = verify_region(network, where, QUICK)
        assert len(result.crown) == 4
        assert (np.array(result.crown) <= smallest + 1e-5).all()
        if result.alpha_crown:
            assert (np.array(result.alpha_crown) <= smallest + 1e-5).all()
            assert (np.array(result.alpha_crown) >= np.array(result.crown)).all()


def identity(low: float, high: float, *clauses: Clause) -> RegionBounds:
    """y = x over one interval."""
    return verify_region(
        network_of(linear([[1.0]], [0.0]), (1,)), region([low], [high], *clauses), QUICK
    )


def test_the_boundary_of_a_closed_constraint_counts_as_unsafe() -> None:
    assert not identity(0.0, 1.0, at_most([1.0], 0.0)).proven
    assert identity(0.0, 1.0, at_most([1.0], -1e-5)).proven


def test_no_proof_rests_on_the_boundary_of_a_strict_constraint() -> None:
    """In exact arithmetic y < 0 is impossible for y = x >= 0; rounding could still meet it."""
    assert not identity(0.0, 1.0, at_most([1.0], 0.0, strict=True)).proven
    assert not identity(0.0, 1.0, at_most([1.0], 1e-6, strict=True)).proven
    assert identity(0.0, 1.0, at_most([1.0], -1e-5, strict=True)).proven


def test_a_disjunction_is_proven_only_with_all_its_clauses_in_any_order() -> None:
    """y = (x, -x) over [0, 1]: A = (y_0 <= 0.5) holds somewhere; B and C nowhere."""
    network = network_of(linear([[1.0], [-1.0]], [0.0, 0.0]), (1,))
    a, b = at_most([1.0, 0.0], 0.5), at_most([1.0, 0.0], -1.0)
    c = Clause(np.array([[0.0, 1.0], [1.0, 1.0]]), np.array([9.0, -0.5]))
    for clauses, expected in (((a, b), False), ((b, c), True), ((a, b, c), False)):
        for order in itertools.permutations(clauses):
            result = verify_region(network, region([0.0], [1.0], *order), QUICK)
            assert result.proven is expected


def test_permuting_clauses_permutes_their_margins() -> None:
    network, where = random_problem(3)
    forward = verify_region(network, where, with_method("crown"))
    backward = verify_region(
        network, Region(where.lower, where.upper, where.clauses[::-1]), with_method("crown")
    )
    np.testing.assert_allclose(forward.crown, backward.crown[2:] + backward.crown[:2], rtol=1e-5)


def test_an_empty_box_and_an_empty_unsafe_set_are_proven() -> None:
    assert identity(1.0, 0.0, at_most([1.0], 5.0)).proven
    assert identity(0.0, 1.0).proven


@pytest.mark.parametrize("method", METHODS)
def test_a_clause_that_always_holds_is_never_proven_away(method: str) -> None:
    """A clause without rows, beside one that CROWN excludes."""
    network = network_of(mlp(2, 4, 1), (2,))
    always = Clause(np.zeros((0, 1)), np.zeros(0))
    for clauses in ((always,), (at_most([1.0], -100.0), always)):
        result = verify_region(
            network, region([-1.0] * 2, [1.0] * 2, *clauses), with_method(method)
        )
        assert not result.proven


def test_a_threshold_is_demanded_of_a_proof() -> None:
    network = network_of(linear([[1.0]], [0.0]), (1,))
    where = region([1.0], [2.0], at_most([1.0], 0.5))
    assert verify_region(network, where, replace(QUICK, threshold=0.4)).proven
    assert not verify_region(network, where, replace(QUICK, threshold=0.6)).proven


def test_rounding_a_coefficient_to_float32_is_no_proof() -> None:
    """c = 1 - 2^-30 becomes 1.0; at y = 2^20 that lifts c y by 2^-10, above the right-hand side."""
    network = network_of(linear([[1.0]], [0.0]), (1,))
    big = 2.0**20
    unsafe = at_most([1 - 2.0**-30], big - 2.0**-11)
    assert unsafe.satisfied_by(np.array([big]))
    assert not verify_region(network, region([big], [big], unsafe), QUICK).proven
    safe = at_most([1 - 2.0**-30], big - 2.0**3)
    assert verify_region(network, region([big], [big], safe), QUICK).proven


def test_the_box_is_rounded_outwards() -> None:
    """2^24 + 1 and 2^24 + 3 are no float32; rounded to the nearest, both are 2^24 + 2 or beyond."""
    big = 2.0**24
    for low, high in ((big + 1, big + 7), (big - 9, big + 3)):
        result = identity(low, high, at_most([1.0], 0.0), at_most([-1.0], 0.0))
        assert result.crown[0] <= low
        assert result.crown[1] <= -high


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_point_box_is_decided_by_a_forward_pass(precision: torch.dtype) -> None:
    torch.manual_seed(7)
    network = network_of(mlp(3, 6, 2), (3,), precision)
    x = np.array([0.5, -1.25, 0.75])
    y = outputs(network, x[None])[0]
    for shift, expected in ((-1e-4, True), (1e-4, False)):
        where = region(x.tolist(), x.tolist(), at_most([1.0, 0.0], float(y[0]) + shift))
        assert verify_region(network, where, QUICK).proven is expected


def test_some_fixed_inputs_change_nothing_for_the_others() -> None:
    torch.manual_seed(8)
    network = network_of(mlp(3, 6, 2), (3,))
    box = region([0.5, -1.0, 0.25], [0.5, 1.0, 0.25], at_most([1.0, 1.0], 0.0))
    smallest = outputs(network, samples(box, 3000)).sum(axis=1).min()
    result = verify_region(network, box, QUICK)
    assert max(result.crown + result.alpha_crown) <= smallest + 1e-5
    assert max(result.crown + result.alpha_crown) >= smallest - 2.0


@pytest.mark.parametrize("prune", [True, False])
def test_pruning_rows_after_crown_does_not_change_what_is_proven(prune: bool) -> None:
    for seed in range(8):
        network, where = random_problem(seed)
        settings = replace(QUICK, prune_after_crown=prune)
        pruned = verify_region(network, where, settings)
        everything = verify_region(network, where, replace(QUICK, prune_after_crown=not prune))
        assert pruned.proven == everything.proven


def test_scaling_output_and_threshold_does_not_change_the_verdict() -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        module = mlp(3, 8, 2)
        network = network_of(module, (3,))
        values = outputs(network, samples(region([-0.3] * 3, [0.3] * 3), 500))
        limit = float(values[:, 0].min())
        verdicts = []
        for scale in (1.0, 1e4):
            with torch.no_grad():
                for parameter in module[2].parameters():
                    parameter.mul_(scale)
            scaled = network_of(module, (3,))
            verdicts.append(
                [
                    verify_region(
                        scaled, region([-0.3] * 3, [0.3] * 3, at_most([1.0, 0.0], s * scale)), QUICK
                    ).proven
                    for s in (limit - 0.02, limit - 0.3, limit + 0.01)
                ]
            )
        assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("method", METHODS[1:])
def test_no_time_at_all_is_timed_out_and_proves_nothing(method: str) -> None:
    network, where = random_problem(1)
    settings = with_method(method)
    settings = replace(settings, bounds=replace(settings.bounds, out_of_time=lambda *_: True))
    result = verify_region(network, where, settings)
    assert (result.proven, result.timed_out, result.crown) == (False, True, ())


def test_time_that_runs_out_during_alpha_crown_keeps_crowns_margins() -> None:
    network, where = next(
        problem
        for problem in map(random_problem, range(20))
        if not verify_region(*problem, with_method("crown")).proven
    )
    asked = itertools.count()
    calls_of_crown = 0

    def counting(*_: float) -> bool:
        nonlocal calls_of_crown
        calls_of_crown += 1
        return False

    settings = replace(QUICK, bounds=BoundOptions(out_of_time=counting))
    verify_region(network, where, replace(settings, method="crown"))
    late = BoundOptions(out_of_time=lambda *_: next(asked) >= calls_of_crown)
    result = verify_region(network, where, replace(QUICK, bounds=late))
    assert result.timed_out
    assert not result.proven
    assert result.iterations == 0
    assert len(result.crown) == len(result.alpha_crown) == 4


class Product(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0] * x[:, 1]


@pytest.mark.parametrize("method", METHODS)
def test_a_product_of_two_inputs_is_bounded_soundly(method: str) -> None:
    """y = x_0 x_1 over a box of radius 0.1 around (0.5, -0.4): [-0.3, -0.12]."""
    network = network_of(Product(), (2,))
    box = ([0.4, -0.5], [0.6, -0.3])
    assert network.num_outputs == 1
    for row, rhs, expected in (
        ([1.0], -0.33, True),
        ([1.0], -0.3, False),
        ([-1.0], 0.09, True),
        ([-1.0], 0.12, False),
    ):
        result = verify_region(network, region(*box, at_most(row, rhs)), with_method(method))
        assert result.proven is expected


class TwoGemmsAdded(nn.Module):
    """Flatten, two Gemms of it, added; input (1, 28, 28)."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(784, 3), nn.Linear(784, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return self.left(flat) + self.right(flat)


@pytest.mark.parametrize("method", METHODS[1:])
def test_two_gemms_of_a_flattened_image_are_bounded_exactly(method: str) -> None:
    """An affine net: CROWN's bounds are its exact minima."""
    torch.manual_seed(10)
    module = TwoGemmsAdded()
    network = network_of(module, (1, 28, 28))
    center = np.random.default_rng(10).random(784)
    rows = [at_most(row, 0.0) for row in np.eye(3).tolist()]
    where = region((center - 0.01).tolist(), (center + 0.01).tolist(), *rows)
    result = verify_region(network, where, with_method(method))
    with torch.no_grad():
        weight = (module.left.weight + module.right.weight).double().numpy()
        bias = (module.left.bias + module.right.bias).double().numpy()
    exact = weight @ center + bias - 0.01 * np.abs(weight).sum(axis=1)
    np.testing.assert_allclose(result.crown, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight", [1e20, 3e38])
@pytest.mark.parametrize("method", METHODS)
def test_weights_that_overflow_prove_nothing(weight: float, method: str) -> None:
    """inf - inf somewhere in the bounds: refused, or not proven."""
    torch.manual_seed(9)
    module = mlp(2, 3, 3, 3, 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter).sign() * weight)
    network = network_of(module, (2,))
    for row in ([1.0], [-1.0]):
        where = region([-1.0, -1.0], [1.0, 1.0], at_most(row, -1.0))
        try:
            result = verify_region(network, where, with_method(method))
        except NonFiniteBoundError:
            continue
        assert not result.proven
