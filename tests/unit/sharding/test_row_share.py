"""How rows are divided among ranks.

A failure means that ranks bound other rows than they gather, or that one holds more than others.
"""

from __future__ import annotations

import pytest
import torch

from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.row_share import RowNeed, RowShare


class _NoGroup:
    """Stands for torch's process group where nothing is sent."""


def _groups(ranks: int) -> list[Communicator]:
    return [Communicator("rows", ranks, rank, _NoGroup()) for rank in range(ranks)]  # type: ignore[arg-type]


def test_ranks_that_hold_least_get_the_rows_left_over() -> None:
    needs = [RowNeed(*need) for need in ((1, 5), (4, 2), (2, 1), (0, 9), (7, 1))]
    for group in _groups(3):
        sizes = [split.sizes for split in RowShare(group).split_all(needs)]
        assert sizes == [(1, 0, 0), (1, 2, 1), (0, 1, 1), (0, 0, 0), (2, 2, 3)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("tile", [None, 1, 4])
def test_every_row_has_one_rank_and_what_ranks_hold_is_even(ranks: int, tile: int | None) -> None:
    generator = torch.Generator().manual_seed(ranks)
    drawn = torch.randint(0, 60, (20, 2), generator=generator).tolist()
    needs = [RowNeed(rows, 1 + cost) for rows, cost in drawn]
    held = []
    for rank, group in enumerate(_groups(ranks)):
        splits = RowShare(group, tile).split_all(needs)
        tiles = [-(-split.sizes[rank] // (tile or 1)) for split in splits]
        held.append(sum(own * need.cost for own, need in zip(tiles, needs, strict=True)))
        for split, need in zip(splits, needs, strict=True):
            assert split.start == sum(split.sizes[:rank])
            assert split.stop - split.start == split.sizes[rank] <= split.most
            assert sum(split.sizes) == need.rows
            starts = [sum(split.sizes[:r]) for r in range(ranks) if split.sizes[r]]
            assert all(start % (tile or 1) == 0 for start in starts)
    assert max(held) - min(held) <= 2 * max(need.cost for need in needs)


def test_a_rank_alone_has_all_rows_and_moves_nothing() -> None:
    split = RowShare(Communicator.single("rows")).split(5)
    assert (split.start, split.stop, split.most) == (0, 5, 5)
    own = torch.arange(5.0, requires_grad=True)
    assert split.gather(own, "rows") is own
    with pytest.raises(ValueError, match="not computed in tiles"):
        split.among_tiles([own], 1)
