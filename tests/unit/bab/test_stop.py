"""When branch and bound stops. A failure is a broken limit, or an end that claims too much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import stop
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.stop import Tally


@dataclass(frozen=True)
class Clock:
    """What `stop.ending` asks of the context."""

    late: bool = False
    pool_limit_bytes: float = 1000.0

    def out_of_time(self) -> bool:
        return self.late


LIMITS = BabSettings(max_domains=10, max_iterations=5)
FOUND = Counterexample(np.zeros(1, dtype=np.float32), np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize(
    ("tally", "late", "expected"),
    [
        (Tally(waiting=1), False, None),
        (Tally(), False, Ending.PROVEN),
        (Tally(), True, Ending.PROVEN),
        (Tally(stuck=1), False, Ending.STUCK),
        (Tally(counterexample=FOUND), True, Ending.VIOLATED),
        (Tally(waiting=3, counterexample=FOUND, pool_bytes=2000), True, Ending.VIOLATED),
        (Tally(waiting=1), True, Ending.TIMEOUT),
        (Tally(waiting=1, pool_bytes=1001), False, Ending.MEMORY),
        (Tally(waiting=10), False, None),
        (Tally(waiting=10, stuck=1), False, Ending.MAX_DOMAINS),
        (Tally(waiting=1, rounds=4), False, None),
        (Tally(waiting=1, rounds=5), False, Ending.MAX_ITERATIONS),
    ],
)
def test_the_end_follows_from_counts_and_clock(
    tally: Tally, late: bool, expected: Ending | None
) -> None:
    assert stop.ending(tally, LIMITS, Clock(late)) is expected  # type: ignore[arg-type]


def test_the_outcome_counts_what_is_left_and_says_why() -> None:
    tally = Tally(rounds=2, visited=40, waiting=8, stuck=3, worst_margin=-0.5)
    for ending in Ending:
        found = stop.outcome(ending, tally, LIMITS, "boxes")
        assert found.reason
        assert (found.rounds, found.domains_visited, found.domains_left) == (2, 40, 11)
        assert found.lower_bound == -0.5 and found.ending is ending
    assert "bab.max_domains" in stop.outcome(Ending.MAX_DOMAINS, tally, LIMITS, "boxes").reason
