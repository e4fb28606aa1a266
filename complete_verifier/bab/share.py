"""What a rank works on in a round: its share of the batch, of its own pool or handed over.

Under `bab.force_synchronous` the batch is the first so many subproblems of all pools in one order,
margin, then path, however many ranks there are; pools are evened out for memory alone. Otherwise
each rank takes from its own pool, and pools are only evened out where ranks would stand idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.errors import MemoryRanOutError
from complete_verifier.bab.balance import even, evened_out, lightened, transfers
from complete_verifier.bab.exchange import Batch, check_conserved, exchange
from complete_verifier.bab.partners import Partners


class NoRoomError(MemoryRanOutError):
    """A rank had no memory for subproblems that were on their way to it; raised on all ranks.

    They are lost, so that nothing can be proven any more.

    Attributes:
        here: whether it is this rank.
    """

    def __init__(self, here: bool) -> None:
        super().__init__("no memory for subproblems that were handed over")
        self.here = here


class Pool(Protocol[Batch]):
    """A rank's open subproblems."""

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> int:
        """A sum modulo 2^64 over what is in it."""

    def keys(self, count: int) -> Tensor:
        """Margins' bits, paths, what tells equal paths apart, and more: of the first ``[n, K]``."""

    def make_room(self, count: int) -> None:
        """Take the memory for so many more."""

    def add(self, batch: Batch) -> None:
        """Put subproblems in."""

    def take(self, count: int) -> Batch:
        """Take the first out."""

    def take_fitting(self, count: int) -> Batch:
        """Take the first out, fewer where memory does not hold so many."""

    def take_spread(self, count: int) -> Batch:
        """Take some out from all over the order."""


def next_batch(
    partners: Partners,
    pool: Pool[Batch],
    size: int,
    waiting: Sequence[int],
    *,
    in_order: bool,
    least: int = 1,
) -> Batch:
    """Take this rank's part of the next batch out of the pools. A collective.

    Args:
        size: subproblems of all ranks together, at most.
        waiting: in each rank's pool, by rank.
        in_order: take the very first of all pools, in the order of bounds.
        least: how many a rank may take in any case, unless they are more than `size`: so many that
            fewer would take longer apiece. Not where they are taken in order.

    Raises:
        SoundnessError: a subproblem was lost or doubled on its way.
        NoRoomError: one was lost for want of memory; on all ranks.
    """
    most = partners.each(size)
    if in_order:
        batch, left = _first_of_all(partners, pool, size, waiting)
        _even_out(partners, pool, left, lightened(left, most))
        return batch
    most = max(most, min(size, least))
    _even_out(partners, pool, waiting, evened_out(waiting, most))
    return pool.take_fitting(most)


def _even_out(
    partners: Partners, pool: Pool[Batch], waiting: Sequence[int], after: Sequence[int] | None
) -> None:
    """Hand subproblems over until each rank holds as many as in `after`; None = they stay."""
    if after is None:
        return
    _hand_over(partners, pool, transfers(waiting, after), pool.take_spread)


def _hand_over(
    partners: Partners,
    pool: Pool[Batch],
    table: Sequence[Sequence[int]],
    take: Callable[[int], Batch],
) -> bool:
    """Move subproblems between pools. A collective.

    Args:
        table: how many each rank hands to each.
        take: takes so many out of this rank's pool.

    Returns:
        Whether they were moved: nothing is sent where a rank has no memory for it.

    Raises:
        NoRoomError: on all ranks, where one had too little in the end.
    """
    before = len(pool), pool.fingerprint
    coming = sum(row[partners.pool.rank] for row in table)
    if partners.pool.agree_any(_starves(lambda: pool.make_room(coming))):
        return False
    excess = take(sum(table[partners.pool.rank]))
    received = exchange(partners.pool, excess, table)
    starved = _starves(lambda: pool.add(received))
    if partners.pool.agree_any(starved):
        raise NoRoomError(starved)
    check_conserved(partners.pool, before, (len(pool), pool.fingerprint))
    return True


def _starves(work: Callable[[], None]) -> bool:
    """Whether memory runs out on it."""
    try:
        work()
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        return True
    return False


def next_blocks(
    partners: Partners,
    pool: Pool[Batch],
    size: int,
    waiting: Sequence[int],
    work_of: Callable[[np.ndarray], np.ndarray],
    number_of: Callable[[int], int],
) -> tuple[list[Batch], int]:
    """Take this rank's part of the next batch, in blocks that do not depend on the ranks.

    The first `size` subproblems of all pools, in the order of bounds, are put into the order of
    their paths and cut into blocks of about equal work; each rank gets whole blocks. A collective.

    Args:
        work_of: what each subproblem costs, in whole units, by its key.
        number_of: into how many blocks so much work is cut, one at least.

    Returns:
        This rank's blocks, and how many there are of all ranks.
    """
    before = len(pool), pool.fingerprint
    owner, keys = _offers(partners, pool, size, waiting)
    first = _in_order(keys)[:size]
    owner, keys = owner[first], keys[first]
    # By path, then by what tells equal paths apart.
    by_place = np.lexsort((keys[:, 2], keys[:, 1]))
    place = by_place.argsort()
    before_it = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(work_of(keys[by_place]), out=before_it[1:])
    number = number_of(int(before_it[-1]))
    block_of = (before_it[:-1] * number // max(1, before_it[-1]))[place]
    shares = np.cumsum(even(number, len(waiting)))
    target = np.searchsorted(shares, block_of, side="right")
    rank, ranks = partners.pool.rank, len(waiting)
    table = [
        [int(((owner == source) & (target == to)).sum()) for to in range(ranks)]
        for source in range(ranks)
    ]
    batch = pool.take(sum(table[rank]))
    batch = batch.select(torch.from_numpy(target[owner == rank].argsort(kind="stable")))
    if ranks > 1:
        batch = exchange(partners.pool, batch, table)
        left = len(pool) + batch.count, pool.fingerprint + batch.fingerprint
        check_conserved(partners.pool, before, left)
    own = target == rank
    # Received by rank and in each rank's order: back to the order of paths.
    arrived = np.lexsort((np.flatnonzero(own), owner[own]))
    by_path = place[own][arrived].argsort()
    blocks = block_of[own][arrived][by_path]
    order = torch.from_numpy(by_path)
    cut = [batch.select(order[torch.from_numpy(blocks == one)]) for one in np.unique(blocks)]
    return cut, number


def _first_of_all(
    partners: Partners, pool: Pool[Batch], size: int, waiting: Sequence[int]
) -> tuple[Batch, list[int]]:
    """The first of all pools, handed over by ranks that have too many; and what waits then.

    They go through the pools: what is handed over comes before all that stays behind.
    """
    owner, keys = _offers(partners, pool, size, waiting)
    first = owner[_in_order(keys)[:size]]
    counts = [int(count) for count in np.bincount(first, minlength=len(waiting))]
    left = [own - taken for own, taken in zip(waiting, counts, strict=True)]
    wanted = even(sum(counts), len(counts))
    if counts != wanted and _hand_over(partners, pool, transfers(counts, wanted), pool.take):
        counts = wanted
    return pool.take(counts[partners.pool.rank]), left


def _offers(
    partners: Partners, pool: Pool[Batch], size: int, waiting: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Owners ``[n]`` and keys ``[n, K]`` of the first `size` subproblems of every pool."""
    offered = [min(size, count) for count in waiting]
    keys = partners.pool.all_gather_uneven(pool.keys(size), offered)
    return np.repeat(np.arange(len(offered)), offered), keys.numpy()


def _in_order(keys: np.ndarray) -> np.ndarray:
    """The order of keys: margin, path, then what tells equal paths apart."""
    margins = np.ascontiguousarray(keys[:, 0]).view(np.float64)
    order: np.ndarray = np.lexsort((keys[:, 2], keys[:, 1], margins))
    return order
