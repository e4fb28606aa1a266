"""What lies within float32's rounding is not proven: evaluation may well find it violated.

A failure means `unsat` for a property that a point of the box violates when the network is run.
"""

from __future__ import annotations

import numpy as np
import torch

from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from tests.unit.bounds.region_cases import at_most, linear, mlp, network_of, outputs, region

CROWN = BoundSettings(method="crown")


def test_the_attained_minimum_of_the_identity_is_never_excluded() -> None:
    """y = x over [l, u], unsafe where y <= l: x = l is a float32 and violates it exactly."""
    network = network_of(linear([[1.0]], [0.0]), (1,))
    generator = np.random.default_rng(0)
    for _ in range(50):
        low, high = np.sort(generator.uniform(-1, 1, 2).astype(np.float32)).astype(float)
        where = region([low], [high], at_most([1.0], low))
        assert not verify_region(network, where, CROWN).proven


def test_the_value_that_evaluation_gives_is_never_excluded_at_a_point() -> None:
    for seed in range(30):
        torch.manual_seed(seed)
        network = network_of(mlp(3, 6, 1), (3,))
        x = torch.randn(3).double().numpy()
        y = float(outputs(network, x[None])[0, 0])
        where = region(x.tolist(), x.tolist(), at_most([1.0], y))
        assert not verify_region(network, where, CROWN).proven


def test_outputs_that_float32_cannot_tell_apart_are_not_proven_different() -> None:
    """Rows that differ in the last place: y_0 > y_1 in exact arithmetic, equal when evaluated."""
    weight = np.float32(0.3)
    network = network_of(
        linear([[float(np.nextafter(weight, np.float32(1)))], [float(weight)]], [0.0, 0.0]), (1,)
    )
    where = region([1.0], [2.0], at_most([1.0, -1.0], 0.0))
    points = np.linspace(1, 2, 1001).astype(np.float32).astype(np.float64)[:, None]
    values = outputs(network, points)
    assert bool((values[:, 0] == values[:, 1]).any())
    assert not verify_region(network, where, CROWN).proven
