"""Who hands how many subproblems to whom. Plain integers, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

# A round that would do less than this share of what it could, or take so much longer, is worth
# moving subproblems for.
_EFFICIENCY = 0.96
# Memory is worth evening out beyond this times the average, and as many batches.
_LOPSIDED = 1.25
# Where work is even anyway: beyond this times the average, and as much of a batch.
_HEAVY, _HEAVY_BATCH = 1.005, 0.01
# Subproblems moved at a time: so many batches per rank at most.
_MOST_BATCHES = 4


def even(total: int, ranks: int) -> list[int]:
    """`total` in parts that differ by one at most, larger ones first."""
    return [total // ranks + int(rank < total % ranks) for rank in range(ranks)]


def transfers(held: Sequence[int], wanted: Sequence[int]) -> list[list[int]]:
    """How many subproblems each rank sends to each, so that ranks hold as many as `wanted`.

    Args:
        held, wanted: per rank, with equal sums.

    Returns:
        ``[from][to]``. What is moved is as little as possible.
    """
    if sum(held) != sum(wanted):
        raise ValueError(f"transfers: {sum(held)} are held and {sum(wanted)} wanted")
    table = [[0] * len(held) for _ in held]
    needs = [max(0, want - have) for have, want in zip(held, wanted, strict=True)]
    for source, (have, want) in enumerate(zip(held, wanted, strict=True)):
        excess = max(0, have - want)
        for target, need in enumerate(needs):
            moved = min(excess, need)
            table[source][target] = moved
            needs[target] -= moved
            excess -= moved
    return table


def evened_out(waiting: Sequence[int], batch: int) -> list[int] | None:
    """How many subproblems each rank should hold before a round; None where they stay in place.

    Args:
        waiting: in each rank's pool.
        batch: most that a rank takes in a round.
    """
    ranks, total = len(waiting), sum(waiting)
    best = min(total, ranks * batch)
    longest = -(-best // ranks)
    done = [min(own, batch) for own in waiting]
    lopsided = max(waiting) > _LOPSIDED * total / ranks + _MOST_BATCHES * batch
    idle = sum(done) < _EFFICIENCY * best or max(done) > longest / _EFFICIENCY + 1
    if not idle and not lopsided:
        return None
    return _towards_even(waiting, batch)


def lightened(waiting: Sequence[int], batch: int) -> list[int] | None:
    """What each rank should hold where work is shared evenly whoever holds what; None = as it is.

    A rank whose subproblems are the better ones keeps them, and its pool alone would grow.

    Args:
        waiting, batch: as for `evened_out`.
    """
    if max(waiting) <= _HEAVY * sum(waiting) / len(waiting) + _HEAVY_BATCH * batch:
        return None
    return _towards_even(waiting, batch)


def _towards_even(waiting: Sequence[int], batch: int) -> list[int]:
    """As even as moving a few batches per rank makes it."""
    table = transfers(waiting, even(sum(waiting), len(waiting)))
    limit = _MOST_BATCHES * batch
    left = list(waiting)
    for source, row in enumerate(table):
        room = limit
        for target, count in enumerate(row):
            moved = min(count, room)
            room -= moved
            left[source] -= moved
            left[target] += moved
    return left
