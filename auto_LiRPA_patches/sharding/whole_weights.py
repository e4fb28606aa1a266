"""Hold every weight whole for a while, so that ranks need not compute in step meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from auto_LiRPA_patches.sharding.weights import WeightSource


@contextmanager
def held_whole(weights: WeightSource) -> Iterator[None]:
    """Gather all weights once; within the block no use of them is a collective.

    All ranks enter together. Takes `weights.full_bytes` of memory on each of them.
    """
    with weights.gathering_once():
        for handle in weights.handles:
            weights.gather(handle)
        weights.settle()
        yield
