"""How branch and bound of one region ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from complete_verifier.attack.counterexample import Counterexample


class Ending(Enum):
    """Why branch and bound stopped."""

    PROVEN = "proven"
    """Every subproblem was excluded: no point of the region's box satisfies any clause."""

    VIOLATED = "violated"
    """A counterexample was found and confirmed."""

    TIMEOUT = "timeout"
    """The clock ran out."""

    MEMORY = "memory"
    """The open subproblems take all the memory they may, or a rank found none for its work."""

    MAX_DOMAINS = "max_domains"
    """More open subproblems than `bab.max_domains` allows."""

    MAX_ITERATIONS = "max_iterations"
    """As many rounds as `bab.max_iterations` allows."""

    STUCK = "stuck"
    """A subproblem is left that can neither be excluded nor split."""


@dataclass(frozen=True, kw_only=True)
class BabOutcome:
    """Result of branch and bound on one region.

    Attributes:
        ending: why it stopped.
        reason: the same in a sentence.
        rounds: batches worked on.
        domains_visited: subproblems bounded, the root's excluded.
        domains_left: subproblems open at the end.
        lower_bound: smallest margin over the subproblems left; +inf when none is left.
        counterexample: for `VIOLATED`.
        fingerprint: of the subproblems left and their margins' bits; see `DomainPool.fingerprint`.
    """

    ending: Ending
    reason: str
    rounds: int = 0
    domains_visited: int = 0
    domains_left: int = 0
    lower_bound: float = float("inf")
    counterexample: Counterexample | None = None
    fingerprint: int = 0
