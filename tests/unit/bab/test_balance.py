"""Who hands how many subproblems to whom: nobody loses any, and nobody idles beside a full pool.

A failure is a subproblem that is sent but not received, or a rank without work.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from auto_LiRPA_patches.errors import SoundnessError
from auto_LiRPA_patches.sharding.collectives import Communicator
from complete_verifier.bab.balance import even, evened_out, lightened, transfers
from complete_verifier.bab.exchange import _pack, _unpack, check_conserved
from complete_verifier.bab.input_pool import BoxPool, halve, root_boxes
from complete_verifier.bab.input_split import number_of_blocks
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.share import next_batch, next_blocks
from tests.unit.bab.test_domain_pool import batch_of, check


def test_transfers_lead_to_what_is_wanted_and_no_rank_both_sends_and_receives() -> None:
    draw = random.Random(0)
    for _ in range(200):
        held = [draw.randrange(0, 40) for _ in range(draw.randrange(1, 6))]
        wanted = even(sum(held), len(held))
        table = transfers(held, wanted)
        for rank, row in enumerate(table):
            received = sum(other[rank] for other in table)
            assert held[rank] - sum(row) + received == wanted[rank]
            assert not (sum(row) and received)
    with pytest.raises(ValueError, match="3 are held and 4 wanted"):
        transfers([1, 2], [2, 2])


@pytest.mark.parametrize(
    ("waiting", "after"),
    [
        ([5], None),
        ([300, 280], None),
        ([256, 0], [128, 128]),
        ([1, 0], None),
        ([0, 51], [26, 25]),
        ([10_000, 300], [10_000 - 1024, 300 + 1024]),  # no more than four batches at a time
        ([300, 240, 256], None),
        ([9_000, 256, 256, 256], [9_000 - 1024, 1280, 256, 256]),  # nobody idles, yet lopsided
    ],
)
def test_pools_are_evened_out_where_a_rank_would_idle(
    waiting: list[int], after: list[int] | None
) -> None:
    assert evened_out(waiting, 256) == after


@pytest.mark.parametrize(
    ("waiting", "after"),
    [
        ([0, 0], None),
        ([1000, 1000, 1000], None),
        ([1007, 1000, 993], None),  # a trifle
        ([5, 0], None),  # a few subproblems: not worth a message
        ([1200, 1000, 800], [1000, 1000, 1000]),
        ([10_000, 0], [8976, 1024]),  # a few batches at a time
    ],
)
def test_pools_are_evened_out_for_memory_where_work_is_even_anyway(
    waiting: list[int], after: list[int] | None
) -> None:
    assert lightened(waiting, 256) == after


def test_what_travels_comes_out_as_it_went_in() -> None:
    batch = batch_of([-1.0, -2.0, -0.5], [3, 0, 2])
    again = batch.rebuilt(_unpack(_pack(batch), batch.tensors))
    check(again)
    assert again.fingerprint == batch.fingerprint
    nothing = batch.select(torch.arange(0))
    assert batch.rebuilt(_unpack(_pack(nothing), batch.tensors)).count == 0


def test_a_change_in_number_or_in_content_is_an_error() -> None:
    alone = Communicator.single()
    check_conserved(alone, (3, 77), (3, 77 + (1 << 64)))
    for after in ((2, 77), (3, 78)):
        with pytest.raises(SoundnessError, match="3 subproblems .* before a move"):
            check_conserved(alone, (3, 77), after)


def test_blocks_are_of_equal_work() -> None:
    """Boxes of which all inputs are tried come with many times the children of others."""
    boxes = root_boxes(torch.zeros(2), torch.ones(2), torch.zeros(1, dtype=torch.bool))
    for number in range(6):
        boxes = halve(boxes, torch.full((boxes.count,), number % 2))
    pool = BoxPool()
    deep = torch.where(boxes.path < boxes.path.sort().values[16], 8, 6).int()
    pool.add(replace(boxes, depth=deep))
    blocks, number = next_blocks(
        Partners.alone(),
        pool,
        64,
        [64],
        lambda keys: np.where(keys[:, 3] == 8, 6, 2),
        lambda work: {16 * 6 + 48 * 2: 4}[work],
    )
    assert number == 4
    assert [block.count for block in blocks] == [8, 8, 24, 24]
    assert [int((block.depth == 8).sum()) for block in blocks] == [8, 8, 0, 0]


@pytest.mark.parametrize(
    ("work", "most", "number"),
    [
        (2, 200, 1),
        (48, 200, 1),
        (49, 200, 2),
        (150, 200, 4),
        (250, 200, 6),
        (400, 200, 12),
        (2400, 200, 12),
        (2500, 200, 24),
        (90, 10, 12),
        (0, 200, 1),
    ],
)
def test_blocks_are_as_many_for_each_of_two_to_four_ranks(
    work: int, most: int, number: int
) -> None:
    assert number_of_blocks(work, most) == number


def test_a_rank_takes_what_a_step_is_worth_but_no_more_than_a_batch() -> None:
    for least, taken in ((1, 100), (60, 100), (300, 100)):
        pool = BoxPool()
        boxes = root_boxes(torch.zeros(2), torch.ones(2), torch.zeros(1, dtype=torch.bool))
        for number in range(8):
            boxes = halve(boxes, torch.full((boxes.count,), number % 2))
        pool.add(boxes)
        alone = Partners.alone()
        assert next_batch(alone, pool, 100, [256], in_order=False, least=least).count == taken


def test_blocks_hold_the_first_boxes_in_the_order_of_their_paths() -> None:
    boxes = root_boxes(torch.zeros(2), torch.ones(2), torch.zeros(1, dtype=torch.bool))
    for number in range(7):
        boxes = halve(boxes, (torch.arange(boxes.count) + number) % 2)
    margins = -torch.rand(boxes.count, generator=torch.Generator().manual_seed(0)).double()
    pool = BoxPool()
    pool.add(boxes.rebuilt([*boxes.tensors[:3], margins, *boxes.tensors[4:]]))
    blocks, _ = next_blocks(
        Partners.alone(), pool, 50, [128], lambda keys: np.full(len(keys), 3), lambda work: 4
    )
    assert [block.count for block in blocks] == [13, 12, 13, 12]
    taken = torch.cat([block.margin for block in blocks])
    assert float(taken.max()) < pool.worst_margin
    paths = torch.cat([block.path for block in blocks])
    assert torch.equal(paths, paths.sort().values)
    rest = next_batch(Partners.alone(), pool, 100, [78], in_order=False)
    assert rest.count == 78 and len(pool) == 0 and pool.fingerprint == 0
