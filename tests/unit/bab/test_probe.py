"""What a probe says of a child is what its own relaxations and backward pass say.

A failure means that neurons are chosen by bounds of other subproblems than those they lead to.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine.backward import LinesAt, lower_bounds
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.rows import BatchRows
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab import bounding as bounding_module
from complete_verifier.bab import probe
from complete_verifier.bab.bounding import Bounding, OpenClauses
from complete_verifier.bab.children import child
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.features import Features
from complete_verifier.bab.probe import ReluProbe
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.specification import Clause
from tests.unit.bounds.region_cases import at_most, mlp, network_of, region


def _bounding(*, memory_bytes: int | None, in_tiles: bool, conjunction: bool = False) -> Bounding:
    torch.manual_seed(1)
    module: nn.Module = mlp(3, 12, 10, 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.0)
    rows = [at_most([1.0, -1.0], 100.0), at_most([0.5, 1.0], 100.0)]
    if conjunction:
        rows.append(Clause([[1.0, -1.0], [0.5, 1.0]], [100.0, 90.0]))
    where = region([-1] * 3, [1] * 3, *rows)
    root = verify_region(network_of(module, (3,)), where, BoundSettings(method="crown")).root
    assert root is not None
    options = BoundOptions(memory_bytes=memory_bytes)
    clauses = OpenClauses.of(root, 0.0)
    return Bounding(root, Features.of(root), clauses, options, in_tiles=in_tiles)


def _batch(bounding: Bounding, count: int) -> tuple[DomainBatch, torch.Tensor]:
    """Subproblems with one split each, and open features ``[count, 3]`` of them."""
    features = bounding.features
    free = features.unstable.nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(0)
    order = torch.stack(
        [free[torch.randperm(len(free), generator=generator)] for _ in range(count)]
    )
    clauses, width = bounding.clauses.index.shape
    clause = torch.arange(count) % clauses
    empty = DomainBatch(
        clause=clause,
        path=torch.arange(count) + 1,
        depth=torch.zeros(count, dtype=torch.int64),
        splits=torch.zeros(count, 0, dtype=torch.int32),
        points=torch.zeros(count, 0),
        betas=torch.zeros(count, width, 0),
        alphas=torch.rand(count, width, features.total, generator=generator),
        margin=torch.full((count,), -np.inf, dtype=torch.float64),
        ranges=bounding.root_ranges(count),
    )
    side = torch.where(torch.arange(count) % 2 == 0, 1, -1)
    split = child(empty, order[:, 0], side)
    split.betas.copy_(torch.rand(split.betas.shape, generator=generator))
    return split, order[:, 1:4]


@pytest.mark.parametrize(
    ("memory_bytes", "in_tiles", "conjunction"),
    [(None, False, False), (20_000, False, False), (None, True, False), (None, False, True)],
)
def test_margins_are_those_of_the_children(
    memory_bytes: int | None, in_tiles: bool, conjunction: bool
) -> None:
    bounding = _bounding(memory_bytes=memory_bytes, in_tiles=in_tiles, conjunction=conjunction)
    batch, tried = _batch(bounding, 21)
    of_batch = ReluProbe(bounding, batch)
    parents = bounding.evaluate(batch)
    layers = set()
    every = of_batch.margins(tried.T)
    for number, feature in enumerate(tried.unbind(1)):
        layers |= {int((f >= s.offset) & (f < s.stop)) * s.activation
                   for f in feature for s in bounding.features.spans}  # fmt: skip
        for side, found in zip((1, -1), every[number], strict=True):
            sides = torch.full_like(feature, side)
            expected = bounding.evaluate(child(batch, feature, sides))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(found, parents, atol=1e-3)
    assert len(layers - {0}) == 2


def test_in_tiles_a_childs_bits_depend_on_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither on the other subproblems nor on how many neurons are tried: passes are alike."""
    sizes = set()

    def bounds(graph: Graph, box: Interval, node: int, rows: BatchRows, lines: LinesAt) -> Tensor:
        sizes.add(tuple(rows.coeffs.shape[:2]))
        return lower_bounds(graph, box, node, rows, lines)

    monkeypatch.setattr(probe, "lower_bounds", bounds)
    bounding = _bounding(memory_bytes=None, in_tiles=True)
    batch, tried = _batch(bounding, 200)
    every = ReluProbe(bounding, batch).margins(tried.T)
    some = torch.arange(150, 200, 3)
    fewer = ReluProbe(bounding, batch.select(some)).margins(tried[some, :2].T)
    assert torch.equal(fewer, every[:2, :, some])
    assert sizes == {(3, bounding.part_size())}


def test_passes_at_once_stay_within_memory_and_what_is_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = _bounding(memory_bytes=60_000, in_tiles=False)
    fits = small.part_size()
    counts = range(1, fits + 1)
    at_once = [small.passes_at_once(count) for count in counts]
    assert all(passes == 1 or passes * n <= fits for n, passes in zip(counts, at_once, strict=True))
    assert {1, 2, 8} <= set(at_once)
    ample = _bounding(memory_bytes=None, in_tiles=False)
    monkeypatch.setattr(bounding_module, "_STEP_WORK", 1 << 17)
    worth = ample.economical
    assert 8 < worth < 1 << 12
    assert [ample.passes_at_once(n) for n in (1, worth // 3, worth + 1)] == [8, 3, 1]
    tiles = _bounding(memory_bytes=None, in_tiles=True)
    monkeypatch.setattr(bounding_module, "_TILE_BYTES", 60_000)
    assert [tiles.passes_at_once(n) for n in (1, fits // 2, fits + 1)] == [3, 2, 1]
