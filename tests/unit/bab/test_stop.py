"""When branch and bound stops. A failure is a broken limit, or an end that claims too much."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from auto_LiRPA_patches.errors import SoundnessError
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import stop
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.outcome import Ending
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.stop import Tally


@dataclass(frozen=True)
class Limit:
    """What `stop.ending` asks of the context."""

    pool_limit_bytes: float = 1000.0


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
        # What a rank without memory was working on is in no pool: no proof.
        (Tally(starved=(1,)), False, Ending.MEMORY),
        (Tally(stuck=1, starved=(1,)), True, Ending.MEMORY),
        (Tally(counterexample=FOUND, starved=(1,)), False, Ending.VIOLATED),
        (Tally(waiting=10), False, None),
        (Tally(waiting=10, stuck=1), False, Ending.MAX_DOMAINS),
        (Tally(waiting=1, rounds=4), False, None),
        (Tally(waiting=1, rounds=5), False, Ending.MAX_ITERATIONS),
    ],
)
def test_the_end_follows_from_counts_and_clock(
    tally: Tally, late: bool, expected: Ending | None
) -> None:
    tally = replace(tally, late=late)
    assert stop.ending(tally, LIMITS, Limit()) is expected  # type: ignore[arg-type]


def test_the_outcome_counts_what_is_left_and_says_why() -> None:
    tally = Tally(rounds=2, visited=40, waiting=8, stuck=3, worst_margin=-0.5)
    for ending in Ending:
        found = stop.outcome(ending, tally, LIMITS, "boxes")
        assert found.reason
        assert (found.rounds, found.domains_visited, found.domains_left) == (2, 40, 11)
        assert found.lower_bound == -0.5 and found.ending is ending
    assert "bab.max_domains" in stop.outcome(Ending.MAX_DOMAINS, tally, LIMITS, "boxes").reason


def test_one_rank_comes_to_what_it_has_itself() -> None:
    own = Tally(rounds=2, visited=9, waiting=4, stuck=1, worst_margin=-0.0, pool_bytes=7, late=True)
    found = stop.together(Partners.alone(), own)
    assert found == replace(own, waiting_by_rank=(4,), bytes_by_rank=(7,))
    assert "4 open (0.0 MiB)" in stop.status(found, "boxes", 1.0)
    assert stop.sum_of(Partners.alone(), (1 << 64) - 3) == (1 << 64) - 3


def test_no_proof_while_a_rank_holds_something() -> None:
    stop.check_nothing_left(Partners.alone(), Tally())
    for own in (Tally(waiting=1), Tally(stuck=1)):
        with pytest.raises(SoundnessError, match="a rank holds one"):
            stop.check_nothing_left(Partners.alone(), own)


def _starve() -> None:
    raise MemoryError("planted")


def test_a_rank_alone_that_finds_no_memory_says_so_and_proves_nothing() -> None:
    partners = Partners.alone()
    failure = partners.attempt(_starve)
    assert isinstance(failure, MemoryError)
    total = stop.together(partners, Tally(), failure)
    assert total.starved == (0,)
    found = stop.outcome(Ending.MEMORY, total, BabSettings(), "boxes")
    assert "does not fit into the memory of rank 0" in found.reason


def test_where_others_follow_call_by_call_lack_of_memory_is_raised_at_once() -> None:
    """They wait in a collective of a layer, and would wait for this rank's counts in vain."""
    partners = replace(Partners.alone(), layers_split=True)
    with pytest.raises(MemoryError):
        partners.attempt(_starve)
