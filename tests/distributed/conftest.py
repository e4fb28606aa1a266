"""Ranks shared by all distributed tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Give `rank_pool.run(function, world_size, *arguments, tp=1, timeout=60)`."""
    with RankPool() as pool:
        yield pool
