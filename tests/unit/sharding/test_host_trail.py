"""What ranks of a host can read of each other's gathers: where they parted, or nothing.

A failure means a rank that blames another for its own mistake, or a reason that nobody is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from auto_LiRPA_patches.sharding.host_trail import TRAIL_BYTES, HostTrail, parting

OFFSET = 24

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux alone has it")


@pytest.fixture
def files() -> Iterator[list[int]]:
    """Of three ranks."""
    made = [os.memfd_create("trail") for _ in range(3)]
    for file in made:
        os.ftruncate(file, OFFSET + TRAIL_BYTES)
    yield made
    for file in made:
        os.close(file)


def walk(file: int, indices: list[int]) -> None:
    trail = HostTrail(file, OFFSET)
    for place, index in enumerate(indices):
        trail.note((index, place))


def test_ranks_that_gathered_alike_did_not_part(files: list[int]) -> None:
    for file in files:
        walk(file, [3, 1, 2])
    assert parting(files, 1, OFFSET, 5.0) is None


def test_the_first_step_at_which_they_part_is_told(files: list[int]) -> None:
    walk(files[0], [3, 1, 2, 0])
    walk(files[1], [3, 5, 9, 9])
    walk(files[2], [3])
    assert parting(files, 1, OFFSET, 5.0) == [(1, 1), (5, 1), None]


def test_a_rank_that_is_behind_is_waited_for_a_while(files: list[int]) -> None:
    walk(files[0], [3, 1])
    walk(files[1], [3, 1, 7])
    walk(files[2], [3, 1, 7])
    start = time.monotonic()
    assert parting(files, 1, OFFSET, 0.2) is None
    assert time.monotonic() - start >= 0.2
    walk(files[0], [3, 1, 8])
    assert parting(files, 1, OFFSET, 0.2) == [(8, 2), (7, 2), (7, 2)]


def test_only_the_last_steps_are_remembered(files: list[int]) -> None:
    """A ring: step 700 lies where step 444 and step 188 lay."""
    for rank, file in enumerate(files):
        walk(file, [rank] + [4] * 699 + [5 + (rank == 2)] + [4] * 20)
    assert parting(files, 0, OFFSET, 1.0) == [(5, 700), (5, 700), (6, 700)]
