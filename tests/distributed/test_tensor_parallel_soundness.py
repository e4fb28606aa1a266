"""A few random networks on two and three ranks against exact minima; the script takes 200.

A failure is a bound that proves what is false.
"""

from __future__ import annotations

import fuzz_tensor_parallel as fuzz
import pytest

from tests.distributed.ranks import RankPool

pytestmark = pytest.mark.distributed

SEEDS = (1001, 1002, 1003)


@pytest.mark.parametrize("size", [2, 3])
def test_no_bound_is_above_the_exact_minimum(rank_pool: RankPool, size: int) -> None:
    by_rank = rank_pool.run(fuzz.bound_cases, size, SEEDS, tp=size)
    for number, seed in enumerate(SEEDS):
        found = [results[number] for results in by_rank]
        assert set(found[0]) == {"ibp", "crown", "alpha-crown", "zone ibp"}
        assert fuzz.faults(fuzz.case(seed), seed, found) == []


def test_a_bound_above_the_minimum_and_ranks_that_differ_are_told() -> None:
    seed = SEEDS[0]
    case = fuzz.case(seed)
    truth = [float(value) for value in fuzz.least(case, seed)]
    assert fuzz.faults(case, seed, [{"crown": truth}, {"crown": truth}]) == []
    above = [*truth[:-1], truth[-1] + 1e-3 * max(1.0, abs(truth[-1]))]
    (told,) = fuzz.faults(case, seed, [{"crown": above}])
    assert told.startswith(f"seed {seed}, crown: ") and told.endswith(" above the minimum")
    assert fuzz.faults(case, seed, [{"crown": truth}, {"crown": above}])[0] == (
        f"seed {seed}: ranks differ"
    )
    assert fuzz.faults(case, seed, [{"crown": [float("nan"), *truth[1:]]}])
