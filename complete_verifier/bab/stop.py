"""When branch and bound stops, of activations and of inputs alike.

The decision rests on counts and on the clock alone. After every round the ranks exchange theirs:
counts are summed, the margins' minimum is taken, one late rank is enough, and all decide alike.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, replace

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.errors import SoundnessError
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab.alpha_trial import Trials
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.outcome import BabOutcome, Ending
from complete_verifier.bab.partners import Partners


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far a region's branch and bound has come: on one rank, or on all together.

    Attributes:
        rounds: batches worked on, the same on every rank.
        visited: subproblems bounded, the root's excluded.
        waiting: subproblems in the pool.
        stuck: subproblems that can neither be excluded nor split.
        worst_margin: smallest margin of a waiting or stuck subproblem; +inf without any.
        pool_bytes: memory of the pool; of all together, of the rank whose pool takes most.
        taken: subproblems of the last batch.
        trials: what the last round tells about α-CROWN on input boxes.
        late: whether the clock has run out.
        counterexample: a confirmed one.
        starved: ranks that found no memory for their part of a round; of all together.
        waiting_by_rank, bytes_by_rank: of all together, `waiting` and `pool_bytes` of each rank.
    """

    rounds: int = 0
    visited: int = 0
    waiting: int = 0
    stuck: int = 0
    worst_margin: float = float("inf")
    pool_bytes: int = 0
    taken: int = 0
    trials: Trials = Trials()
    late: bool = False
    counterexample: Counterexample | None = None
    starved: tuple[int, ...] = ()
    waiting_by_rank: tuple[int, ...] = ()
    bytes_by_rank: tuple[int, ...] = ()


_LATE, _FOUND, _FAILED, _STARVED = 1, 2, 4, 8


def together(partners: Partners, own: Tally, failure: Exception | None = None) -> Tally:
    """What all ranks have come to; the same on all of them. A collective.

    Args:
        own: this rank's.
        failure: what ended this rank's work.

    Raises:
        PartnerError: on all ranks, if some rank's work failed otherwise than for want of memory;
            see `Partners.attempt`.
    """
    starved = failure is not None and ran_out_of_memory(failure)
    flags = _LATE * own.late + _FOUND * (own.counterexample is not None)
    flags += _STARVED if starved else _FAILED * (failure is not None)
    message = [flags, _bits(own.worst_margin), own.visited, own.waiting, own.stuck]
    message += [own.pool_bytes, own.taken, *astuple(own.trials)]
    rows = partners.pool.all_gather_integers("round of branch and bound", message)
    said = [row[0] for row in rows]
    if any(flag & _FAILED for flag in said):
        partners.raise_together(failure)
    finders = [rank for rank, flag in enumerate(said) if flag & _FOUND]
    found = own.counterexample
    if finders:  # the first one hands it to the others, rank 0 among them
        found = partners.pool.broadcast_object(found, finders[0])
    _, margins, visited, waiting, stuck, held, taken, *trials = zip(*rows, strict=True)
    return replace(
        own,
        visited=sum(visited),
        waiting=sum(waiting),
        stuck=sum(stuck),
        worst_margin=min(_number(bits) for bits in margins),
        pool_bytes=max(held),
        taken=sum(taken),
        trials=Trials(*(sum(column) for column in trials)),
        late=any(flag & _LATE for flag in said),
        counterexample=found,
        starved=tuple(rank for rank, flag in enumerate(said) if flag & _STARVED),
        waiting_by_rank=tuple(waiting),
        bytes_by_rank=tuple(held),
    )


def sum_of(partners: Partners, fingerprint: int) -> int:
    """The ranks' fingerprints together, modulo 2^64. A collective."""
    halves = [fingerprint >> 32, fingerprint & 0xFFFFFFFF]
    rows = partners.pool.all_gather_integers("fingerprint", halves)
    return sum((high << 32) + low for high, low in rows) % (1 << 64)


def check_nothing_left(partners: Partners, own: Tally) -> None:
    """Before a proof, let every rank say once more that it holds nothing. A collective.

    Raises:
        SoundnessError: some rank does.
    """
    if not partners.pool.agree_all(own.waiting == 0 and own.stuck == 0):
        raise SoundnessError(
            "branch and bound: the counts of all ranks said that no subproblem is left, but a rank "
            "holds one. Nothing is concluded."
        )


def _bits(value: float) -> int:
    """The bits of a float64 as a signed integer."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def _number(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def ending(tally: Tally, settings: BabSettings, context: BabContext) -> Ending | None:
    """Whether to stop, and why; None goes on. A counterexample beats a proof beats a limit."""
    if tally.counterexample is not None:
        return Ending.VIOLATED
    if tally.starved:  # before any proof: what that rank was working on is in no pool
        return Ending.MEMORY
    if tally.waiting == 0:
        return Ending.STUCK if tally.stuck else Ending.PROVEN
    if tally.late:
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
    memory = f"open {noun} take {tally.pool_bytes / 2**20:.0f} MiB, all that is allowed"
    if tally.starved:
        memory = f"a batch, however small, does not fit into the memory of rank {tally.starved[0]}"
    reasons = {
        Ending.PROVEN: f"{tally.visited} {noun} exclude every violation",
        Ending.VIOLATED: "counterexample found in the tree",
        Ending.TIMEOUT: "the time limit was reached",
        Ending.MEMORY: memory,
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
    """One line of progress; the memory is that of each rank's pool."""
    held = " + ".join(f"{own / 2**20:.1f}" for own in tally.bytes_by_rank or (tally.pool_bytes,))
    return (
        f"round {tally.rounds}: {tally.visited} {noun} visited, {tally.waiting} open "
        f"({held} MiB), lower bound {tally.worst_margin:.6g}, "
        f"{tally.visited / max(seconds, 1e-9):.0f} per second"
    )
