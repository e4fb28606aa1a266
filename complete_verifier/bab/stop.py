"""When branch and bound stops, of activations and of inputs alike.

The decision rests on counts and on the clock alone. Over several ranks the counts are summed, the
margins' minimum taken, and all ranks decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.outcome import BabOutcome, Ending


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far a region's branch and bound has come.

    Attributes:
        rounds: batches worked on.
        visited: subproblems bounded, the root's excluded.
        waiting: subproblems in the pool.
        stuck: subproblems that can neither be excluded nor split.
        worst_margin: smallest margin of a waiting or stuck subproblem; +inf without any.
        pool_bytes: memory of the pool.
        counterexample: a confirmed one.
    """

    rounds: int = 0
    visited: int = 0
    waiting: int = 0
    stuck: int = 0
    worst_margin: float = float("inf")
    pool_bytes: int = 0
    counterexample: Counterexample | None = None


def ending(tally: Tally, settings: BabSettings, context: BabContext) -> Ending | None:
    """Whether to stop, and why; None goes on. A counterexample beats a proof beats a limit."""
    if tally.counterexample is not None:
        return Ending.VIOLATED
    if tally.waiting == 0:
        return Ending.STUCK if tally.stuck else Ending.PROVEN
    if context.out_of_time():
        return Ending.TIMEOUT
    if tally.pool_bytes > context.pool_limit_bytes:
        return Ending.MEMORY
    if tally.waiting + tally.stuck > settings.max_domains:
        return Ending.MAX_DOMAINS
    if settings.max_iterations is not None and tally.rounds >= settings.max_iterations:
        return Ending.MAX_ITERATIONS
    return None


def outcome(found: Ending, tally: Tally, settings: BabSettings, noun: str) -> BabOutcome:
    """The result of a run that ended so; `noun` is the plural of what the pool holds."""
    reasons = {
        Ending.PROVEN: f"{tally.visited} {noun} exclude every violation",
        Ending.VIOLATED: "counterexample found in the tree",
        Ending.TIMEOUT: "the time limit was reached",
        Ending.MEMORY: f"open {noun} take {tally.pool_bytes / 2**20:.0f} MiB, all that is allowed",
        Ending.MAX_DOMAINS: f"more than {settings.max_domains:g} open {noun} (bab.max_domains)",
        Ending.MAX_ITERATIONS: f"{tally.rounds} rounds were allowed (bab.max_iterations)",
        Ending.STUCK: f"{tally.stuck} {noun} can neither be excluded nor split",
    }
    return BabOutcome(
        ending=found,
        reason=reasons[found],
        rounds=tally.rounds,
        domains_visited=tally.visited,
        domains_left=tally.waiting + tally.stuck,
        lower_bound=tally.worst_margin,
        counterexample=tally.counterexample,
    )


def status(tally: Tally, noun: str, seconds: float) -> str:
    """One line of progress."""
    return (
        f"round {tally.rounds}: {tally.visited} {noun} visited, {tally.waiting} open "
        f"({tally.pool_bytes / 2**20:.1f} MiB), lower bound {tally.worst_margin:.6g}, "
        f"{tally.visited / max(seconds, 1e-9):.0f} per second"
    )
