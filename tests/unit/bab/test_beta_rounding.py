"""Multipliers of splits add numbers that cancel; what rounding leaves of them proves nothing."""

from __future__ import annotations

import torch

from auto_LiRPA_patches.engine.subproblems import BetaOptions
from tests.unit.bab.test_probe import _batch, _bounding

EPS = torch.finfo(torch.float32).eps


def test_a_margin_gives_way_by_the_size_of_its_multipliers() -> None:
    bounding = _bounding(memory_bytes=None, in_tiles=False)
    batch, _ = _batch(bounding, 8)
    once = BetaOptions(iterations=0)
    for factor in (1.0, 1e6):
        batch.betas.mul_(factor)
        plain = bounding.evaluate(batch)
        found = bounding.optimize(batch, once, stop_early=False)
        split = batch.splits[:, 0].long().abs() - 1
        root = bounding.features.own_bounds(bounding.root.bounds)[0]
        largest = root.abs().amax(dim=0)[split]
        expected = 8 * EPS * (batch.betas[:, 0, 0] * largest).double()
        torch.testing.assert_close(plain - found.margin, expected, rtol=1e-3, atol=1e-9)
        assert (found.margin < plain).all()
