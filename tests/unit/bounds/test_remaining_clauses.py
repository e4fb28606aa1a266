"""What first bounds leave of a region: no clause that some input satisfies may be dropped.

A failure means that an attack is not told of a clause it could have violated.
"""

from __future__ import annotations

import numpy as np
import torch

from complete_verifier.bounds.incomplete import RegionVerification
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import mlp, network_of, outputs, region, samples


def problem(seed: int) -> tuple[Network, Region, np.ndarray]:
    """Six clauses of two rows, some impossible, some satisfied; and outputs ``[n, 3]``."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    network = network_of(mlp(3, 8, 8, 3), (3,))
    center, radius = generator.normal(size=3), generator.uniform(0.1, 0.4, size=3)
    box = region((center - radius).tolist(), (center + radius).tolist())
    values = outputs(network, samples(box, 500))
    clauses = []
    for reach in (-0.2, 0.1, 0.6, 1.5, 4.0, 9.0):
        rows = generator.normal(size=(2, 3))
        low, high = (values @ rows.T).min(axis=0), (values @ rows.T).max(axis=0)
        clauses.append(Clause(rows, low - reach * (high - low)))
    return network, Region(box.lower, box.upper, tuple(clauses)), values


def test_every_clause_that_a_sample_satisfies_remains() -> None:
    dropped = satisfied = 0
    for seed in range(12):
        network, asked, values = problem(seed)
        left = RegionVerification(network, asked, BoundSettings()).remaining()
        assert left.lower is asked.lower or np.array_equal(left.lower, asked.lower)
        dropped += len(asked.clauses) - len(left.clauses)
        for clause in asked.clauses:
            met = (values @ clause.coefficients.T <= clause.rhs).all(axis=1).any()
            satisfied += int(met)
            assert not met or any(clause is own for own in left.clauses)
    assert dropped > 12
    assert satisfied > 3


def test_a_region_that_first_bounds_prove_has_nothing_left() -> None:
    network, asked, _ = problem(0)
    impossible = Region(asked.lower, asked.upper, asked.clauses[-1:])
    assert RegionVerification(network, impossible, BoundSettings()).first().proven
    assert RegionVerification(network, impossible, BoundSettings()).remaining().clauses == ()
