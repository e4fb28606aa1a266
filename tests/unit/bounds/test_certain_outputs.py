"""Clauses that no output can satisfy, whatever the input: none that some output satisfies may go.

A failure means that a clause is dropped which the network can meet: a false proof.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from complete_verifier.bounds.certain import CertainOutputs, possible
from complete_verifier.specification import Clause, Specification
from tests.unit.bounds.region_cases import at_most, network_of, region

CASES = {
    "softmax": (CertainOutputs(1.0, 3), lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)),
    "two softmaxes": (
        CertainOutputs(1.0, 2),
        lambda x: (
            np.exp(x.reshape(-1, 2, 2)) / np.exp(x.reshape(-1, 2, 2)).sum(axis=2, keepdims=True)
        ).reshape(-1, 4),
    ),
    "sigmoid": (CertainOutputs(1.0), lambda x: 1 / (1 + np.exp(-x))),
    "relu": (CertainOutputs(np.inf), lambda x: np.maximum(x, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_clause_goes_that_an_output_satisfies(name: str) -> None:
    certain, function = CASES[name]
    generator = np.random.default_rng(3)
    width = 4 if name == "two softmaxes" else 3
    with np.errstate(over="ignore", invalid="ignore"):
        values = function(generator.normal(size=(3000, width)) * 20)
    values = values[np.isfinite(values).all(axis=1)]
    gone = 0
    for _ in range(400):
        rows = generator.integers(-1, 2, size=(2, width)).astype(float)
        rhs = generator.choice([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5], size=2)
        clause = Clause(rows, rhs, generator.random(2) < 0.5)
        if certain.exclude(clause):
            gone += 1
            assert not any(clause.satisfied_by(value) for value in values)
    assert gone > 20


def test_a_single_output_is_exact_and_a_sum_clears_an_allowance() -> None:
    certain = CertainOutputs(1.0, 2)
    assert certain.exclude(at_most([1, 0], 0.0, strict=True))  # y_0 < 0
    assert not certain.exclude(at_most([1, 0], 0.0))  # y_0 <= 0 is reached by rounding
    assert certain.exclude(at_most([-1, 0], -1.0, strict=True))  # y_0 > 1
    assert not certain.exclude(at_most([-1, -1], -1.0, strict=True))  # and so is a sum above 1
    assert certain.exclude(at_most([-1, -1], -1.01))


def test_the_last_operator_of_a_network_tells() -> None:
    for module, expected in (
        (nn.Sequential(nn.Linear(2, 3), nn.Softmax(dim=-1)), CertainOutputs(1.0, 3)),
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten()), CertainOutputs(np.inf)),
        (nn.Sequential(nn.Linear(2, 3), nn.Sigmoid()), CertainOutputs(1.0)),
        (nn.Sequential(nn.Softmax(dim=-1), nn.Linear(2, 3)), None),
    ):
        assert CertainOutputs.of(network_of(module, (2,)).graph) == expected


def test_only_clauses_go_and_the_box_stays() -> None:
    torch.manual_seed(0)
    network = network_of(nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=-1)), (2,))
    impossible, open_one = at_most([1, 0], -0.5), at_most([1, 0], 0.5)
    asked = Specification((region([-1, -1], [1, 1], impossible, open_one),), "s", 2, 2)
    (left,) = possible(asked, network.graph).regions
    assert left.clauses == (open_one,) and np.array_equal(left.lower, asked.regions[0].lower)
