"""The pool of open subproblems: order, memory, and what comes back out of it.

A failure is a subproblem that is lost, mixed with another's tensors, or taken out of turn; a lost
one is a false proof.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.pool import DomainPool

FEATURES, ROWS = 5, 2


def batch_of(margins: list[float], depths: list[int], first_path: int = 0) -> DomainBatch:
    """Subproblems whose tensors all tell their path."""
    count, deepest = len(margins), max(depths)
    path = torch.arange(first_path, first_path + count)
    depth = torch.tensor(depths)
    used = torch.arange(deepest) < depth.unsqueeze(1)
    return DomainBatch(
        clause=path % 3,
        path=path,
        depth=depth,
        splits=((path.unsqueeze(1) + 1) * used).to(torch.int32),
        points=(0.5 * path.unsqueeze(1) * used).float(),
        betas=(path.view(-1, 1, 1) * used.unsqueeze(1)).expand(-1, ROWS, -1).float(),
        alphas=path.view(-1, 1, 1).expand(-1, ROWS, FEATURES).float().contiguous(),
        ranges=path.view(-1, 1, 1).expand(-1, 2, FEATURES).float().contiguous(),
        margin=torch.tensor(margins, dtype=torch.float64),
    )


def check(batch: DomainBatch) -> None:
    """Every subproblem still has its own tensors."""
    path = batch.path
    used = torch.arange(batch.splits.shape[1]) < batch.depth.unsqueeze(1)
    assert torch.equal(batch.splits, ((path.unsqueeze(1) + 1) * used).to(torch.int32))
    assert torch.equal(batch.points, (0.5 * path.unsqueeze(1) * used).float())
    assert torch.equal(batch.clause, path % 3)
    assert bool((batch.alphas == path.view(-1, 1, 1)).all())
    assert bool((batch.ranges == path.view(-1, 1, 1)).all())
    expected = (path.view(-1, 1, 1) * used.unsqueeze(1)).expand_as(batch.betas)
    assert torch.equal(batch.betas, expected.float())


def test_subproblems_come_back_whole_whatever_was_added_and_taken_between() -> None:
    generator = torch.Generator().manual_seed(0)
    pool, waiting, path = DomainPool(worst_first=True), set(), 0
    for number in range(60):
        count = int(torch.randint(1, 40, (), generator=generator))
        margins = (-torch.rand(count, generator=generator)).tolist()
        depths = torch.randint(0, 2 + number // 4, (count,), generator=generator).tolist()
        pool.add(batch_of(margins, depths, path))
        waiting |= set(range(path, path + count))
        path += count
        taken = pool.take(int(torch.randint(1, 40, (), generator=generator)))
        check(taken)
        assert set(taken.path.tolist()) <= waiting
        waiting -= set(taken.path.tolist())
        assert len(pool) == len(waiting)
    rest = pool.take(10**6)
    check(rest)
    assert set(rest.path.tolist()) == waiting


def test_worst_first_takes_the_smallest_margin_and_among_equals_the_smallest_path() -> None:
    pool = DomainPool(worst_first=True)
    pool.add(batch_of([-1.0, -3.0, -2.0, -3.0], [1, 1, 1, 1]))
    assert pool.worst_margin == -3.0
    assert pool.take(3).path.tolist() == [1, 3, 2]
    assert pool.worst_margin == -1.0


def test_depth_first_takes_the_deepest_and_among_those_the_nearest_to_a_proof() -> None:
    pool = DomainPool(worst_first=False)
    pool.add(batch_of([-1.0, -3.0, -2.0, -3.5], [1, 2, 2, 3]))
    assert pool.worst_margin == -3.5
    assert pool.take(1).path.tolist() == [3]
    assert pool.worst_margin == -3.0  # the freed slot does not count
    pool.add(batch_of([-9.0, -8.0], [4, 4], first_path=4))
    assert pool.take(10).path.tolist() == [5, 4, 2, 1, 0]


def test_sorting_puts_what_waits_behind_what_comes_by_margin() -> None:
    """`bab.sort_domain_interval`: search deep between two sorts, then turn to the worst."""
    pool = DomainPool(worst_first=False)
    pool.add(batch_of([-1.0, -3.0, -2.0], [5, 1, 7]))
    pool.sort()
    pool.add(batch_of([-0.5, -0.6], [2, 3], first_path=3))
    assert pool.take(10).path.tolist() == [4, 3, 1, 2, 0]
    empty = DomainPool(worst_first=False)
    empty.sort()
    assert len(empty) == 0


@pytest.mark.parametrize("worst_first", [True, False])
def test_an_empty_pool_has_no_margin_and_no_bytes(worst_first: bool) -> None:
    pool = DomainPool(worst_first=worst_first)
    assert (pool.num_bytes, pool.worst_margin, len(pool)) == (0, float("inf"), 0)
    pool.add(batch_of([-1.0], [0]))
    pool.take(1)
    assert pool.worst_margin == float("inf")


def test_bytes_are_those_of_the_slabs_and_freed_slots_are_used_again() -> None:
    pool = DomainPool(worst_first=True)
    pool.add(batch_of([-1.0] * 100, [3] * 100))
    per_slot = 4 * 8 + 2 * 3 * 4 + ROWS * 3 * 4 + (ROWS + 2) * FEATURES * 4
    segment = 1024 * per_slot  # small subproblems: many to a segment
    assert pool.num_bytes == segment
    for start in range(0, 1000, 50):
        pool.take(50)
        pool.add(batch_of([-1.0] * 50, [3] * 50, first_path=200 + start))
    assert pool.num_bytes == segment
    pool.add(batch_of([-1.0] * 925, [3] * 925, first_path=5000))
    assert pool.num_bytes == 2 * segment


def _large(count: int, first_path: int, depth: int = 3) -> DomainBatch:
    """Subproblems of 32 KiB and more each: 16 to a segment, as few as there can be."""
    small = batch_of([-float(first_path + own) for own in range(count)], [depth] * count)
    alphas = torch.arange(first_path, first_path + count).view(-1, 1, 1).expand(-1, ROWS, 1 << 14)
    path = torch.arange(first_path, first_path + count)
    return replace(small, path=path, alphas=alphas.float())


def test_to_grow_a_pool_never_copies_what_it_holds() -> None:
    # The likely bug: old and new slabs side by side, more than twice the pool at its peak.
    pool = DomainPool(worst_first=True)
    with MemoryMeter() as meter:
        for start in range(0, 400, 16):
            pool.add(_large(16, start))
        held, batch = pool.num_bytes, 16 * pool.num_bytes // 400
        assert held <= 400 * 2 * (1 << 16) * 1.01 + batch
        assert meter.peak_bytes <= held + 4 * batch


def test_subproblems_of_several_segments_and_depths_come_back_in_order() -> None:
    pool = DomainPool(worst_first=True)
    for start, depth in ((0, 1), (20, 5), (40, 12), (60, 2)):
        pool.add(_large(20, start, depth))
    taken = pool.take(50)
    assert taken.path.tolist() == list(range(79, 29, -1))
    assert taken.margin.tolist() == [-float(path) for path in range(79, 29, -1)]
    assert torch.equal(taken.alphas[:, 0, 0], taken.path.float())
    assert (taken.depth.tolist(), taken.width) == ([2] * 20 + [12] * 20 + [5] * 10, 12)
    assert bool((taken.splits[:20, 2:] == 0).all()) and bool((taken.splits[20:40] != 0).all())
    assert pool.worst_margin == -29.0
    rest = pool.take(100)
    assert (rest.path.tolist(), rest.width) == (list(range(29, -1, -1)), 5)


class _Short(TorchDispatchMode):
    """No memory for a result of so many numbers, at its n-th large result."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.fails_at, self.done = fails_at, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.done += isinstance(result, torch.Tensor) and result.numel() >= 100
        if self.done == self.fails_at:
            self.done += 1
            raise torch.OutOfMemoryError("planted")
        return result


def test_what_memory_does_not_hold_stays_whole_in_the_pool() -> None:
    met = 0
    for fails_at in range(1, 40):
        pool = DomainPool(worst_first=True)
        pool.add(batch_of([-float(own) for own in range(60)], [3] * 60))
        fingerprint = pool.fingerprint
        with _Short(fails_at) as short:
            taken = pool.take_fitting(40)
        check(taken)
        met += short.done > fails_at
        assert taken.count == (20 if short.done > fails_at else 40)
        assert taken.path.tolist() == list(range(59, 59 - taken.count, -1))
        rest = pool.take(60)
        check(rest)
        assert rest.count == 60 - taken.count and pool.worst_margin == float("inf")
        assert (taken.fingerprint + rest.fingerprint) % (1 << 64) == fingerprint
        assert pool.fingerprint == 0
    assert met > 3


def test_the_fingerprint_tells_one_bit_and_not_the_order() -> None:
    margins, depths = [-1.0, -2.0, -3.0], [1, 1, 1]
    whole, parts, other = (DomainPool(worst_first=True) for _ in range(3))
    batch = batch_of(margins, depths)
    whole.add(batch)
    parts.add(batch.select(torch.tensor([2])))
    parts.add(batch.select(torch.tensor([1, 0])))
    assert whole.fingerprint == parts.fingerprint != 0
    nearly = float(torch.nextafter(torch.tensor(-2.0).double(), torch.tensor(0.0).double()))
    other.add(batch_of([-1.0, nearly, -3.0], depths))
    assert other.fingerprint != whole.fingerprint
    assert DomainPool(worst_first=True).fingerprint == 0
