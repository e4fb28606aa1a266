"""Margins of boxes hold at every sampled point, and one box never harms another.

A failure is a box called excluded that holds a violation, or a parent's knowledge lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import schedule
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.rows import Rows
from auto_LiRPA_patches.operators.interval import Interval
from complete_verifier.bab import input_bounds
from complete_verifier.bab.input_bounds import InputBounds
from complete_verifier.bab.input_pool import Boxes, halve, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.region_group import RegionGroup
from complete_verifier.model.network import Network
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import at_most, linear, mlp, network_of, region

DEFAULTS = BoundOptions()
BOUNDINGS = ("crown", "alpha-crown", "crown-ibp", "ibp", "forward", "forward+crown")


def bounds_of(
    network: Network,
    where: Region,
    settings: InputSplitSettings,
    options: BoundOptions = DEFAULTS,
    *,
    in_blocks: bool = False,
) -> InputBounds:
    group = RegionGroup.of([where])
    return InputBounds(network, group, options, settings, 0.0, in_blocks=in_blocks)


def parts_of(where: Region, times: int) -> Boxes:
    """2**times boxes that cover the region."""
    lower, upper = torch.tensor(where.lower).float(), torch.tensor(where.upper).float()
    boxes = root_boxes(lower, upper, torch.zeros(len(where.clauses), dtype=torch.bool))
    for level in range(times):
        dims = torch.full((boxes.count,), level % where.num_inputs)
        boxes = halve(boxes, dims)
    return boxes


def three_clauses(seed: int) -> tuple[Network, Region]:
    torch.manual_seed(seed)
    network = network_of(mlp(3, 10, 10, 3), (3,))
    generator = np.random.default_rng(seed)
    clauses = tuple(
        Clause(generator.normal(size=(2, 3)), generator.normal(size=2) * 0.2) for _ in range(3)
    )
    return network, Region(np.full(3, -1.0), np.full(3, 1.0), clauses)


@pytest.mark.parametrize("bounding", BOUNDINGS)
def test_no_sampled_point_has_a_smaller_margin_or_lies_in_an_excluded_clause(
    bounding: str,
) -> None:
    settings = InputSplitSettings(bounding=bounding, alpha=AlphaOptions(iterations=3))
    seen = 0
    for seed in range(4):
        network, where = three_clauses(seed)
        boxes = bounds_of(network, where, settings).bound(parts_of(where, 6)).boxes
        share = torch.rand(50, boxes.count, 3)
        points = boxes.lower + share * (boxes.upper - boxes.lower)
        values = network.forward(points.flatten(0, 1)).view(50, boxes.count, 3).double().numpy()
        least = np.full((50, boxes.count), np.inf)
        for index, clause in enumerate(where.clauses):
            margins = (values @ clause.coefficients.T - clause.rhs).max(axis=-1)
            gone = boxes.excluded[:, index].numpy()
            assert (margins[:, gone] > 0).all()
            least[:, ~gone] = np.minimum(least[:, ~gone], margins[:, ~gone])
            seen += int(gone.sum())
        assert (least >= boxes.margin.numpy() - 1e-5).all()
    assert seen > 20


def test_children_inherit_margin_and_excluded_clauses() -> None:
    network, where = three_clauses(1)
    bounds = bounds_of(network, where, InputSplitSettings())
    parents = bounds.bound(parts_of(where, 4)).boxes
    known = parents.excluded.clone()
    known[:, 0] = True
    parents = replace(parents, margin=parents.margin + 1.0, excluded=known)
    children = bounds.bound(halve(parents, torch.zeros(parents.count, dtype=torch.int64))).boxes
    assert bool((children.margin >= parents.margin.repeat_interleave(2)).all())
    assert bool(children.excluded[parents.excluded.repeat_interleave(2, dim=0)].all())


def test_margins_do_not_depend_on_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    network, where = three_clauses(2)
    boxes = parts_of(where, 7)
    found = []
    for elements in (1, 1 << 20):
        monkeypatch.setattr(input_bounds, "_TILE_ELEMENTS", elements)
        bounds = bounds_of(network, where, InputSplitSettings())
        found.append(bounds.bound(boxes).boxes)
    assert bounds.tile > 16
    # The tile decides which stable neurons are bounded along, so bounds differ a little.
    assert torch.allclose(found[0].margin, found[1].margin, atol=0.05)
    assert float((found[0].excluded == found[1].excluded).double().mean()) > 0.95


def test_a_tile_goes_down_in_passes_that_stay_in_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, where = three_clauses(2)
    boxes = parts_of(where, 5)
    found, heights = [], []
    bound_one = schedule.lower_bounds

    def watched(graph: Graph, box: Interval, node: int, rows: Rows, *rest: Any) -> Tensor:
        heights.append(rows.count * box.lower.shape[0])
        return bound_one(graph, box, node, rows, *rest)

    monkeypatch.setattr(schedule, "lower_bounds", watched)
    highest = []
    for least in (1, 1 << 20):
        monkeypatch.setattr(input_bounds, "_PASS_ELEMENTS", 10 * 3 * boxes.count)
        monkeypatch.setattr(input_bounds, "_LEAST_PRODUCT", least)
        heights.clear()
        found.append(bounds_of(network, where, InputSplitSettings()).bound(boxes).boxes)
        highest.append(max(heights))
    assert highest[0] == 3 * boxes.count < highest[1]
    torch.testing.assert_close(found[0].margin, found[1].margin, rtol=1e-6, atol=1e-6)
    assert torch.equal(found[0].excluded, found[1].excluded)


def test_a_block_takes_no_more_rows_than_it_has() -> None:
    """It is one rank's: tiles of rows, which ranks may share, would only add to the work."""
    network, where = three_clauses(2)
    tiled = BoundOptions(tile_rows=64)
    blocks = bounds_of(network, where, InputSplitSettings(), tiled, in_blocks=True)
    assert blocks.options.tile_rows is None
    # Others of a region are asked for bits that do not depend on what is bounded beside them.
    assert bounds_of(network, where, InputSplitSettings(), tiled).options.tile_rows == 64


def test_a_box_that_overflows_stays_open_and_leaves_its_neighbours_alone() -> None:
    net = nn.Sequential(linear([[1e20]], [0.0]), nn.ReLU(), linear([[1e18]], [1.0]))
    network = network_of(net, (1,))
    where = region([0.0], [3e38], at_most([1.0], 0.0))
    bounds = bounds_of(network, where, InputSplitSettings())
    boxes = parts_of(where, 2)
    boxes = replace(
        boxes,
        lower=torch.tensor([[0.0], [1e30], [0.0], [1e37]]),
        upper=torch.tensor([[1e-37], [2e30], [2e-37], [3e38]]),
    )
    bounded = bounds.bound(boxes).boxes
    assert bounded.is_open.tolist() == [False, True, False, True]
    assert bounded.margin[1] == -torch.inf
    assert bool(torch.isfinite(bounded.score).all())


def test_smart_score_is_the_planes_slope_times_half_the_width() -> None:
    network = network_of(linear([[3.0, -1.0]], [0.0]), (2,))
    where = region([0.0, 0.0], [1.0, 8.0], at_most([1.0], -100.0))
    smart = bounds_of(network, where, InputSplitSettings()).bound(parts_of(where, 0))
    assert smart.boxes.score[0].tolist() == pytest.approx([1.5, 4.0])
    assert smart.corners[0].tolist() == [0.0, 8.0]
    naive = bounds_of(network, where, InputSplitSettings(heuristic="naive"))
    assert naive.bound(parts_of(where, 0)).boxes.score[0].tolist() == [1.0, 1.0]


def test_smart_score_looks_at_open_clauses_only() -> None:
    network = network_of(linear([[5.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), (2,))
    clauses = (at_most([1.0, 0.0], 100.0), at_most([0.0, 1.0], 100.0))
    where = region([0.0, 0.0], [1.0, 1.0], *clauses)
    boxes = parts_of(where, 0)
    bounds = bounds_of(network, where, InputSplitSettings())
    assert int(bounds.bound(boxes).boxes.score[0].argmax()) == 0
    boxes = replace(boxes, excluded=torch.tensor([[True, False]]))
    assert int(bounds.bound(boxes).boxes.score[0].argmax()) == 1


def test_settings_refuse_unknown_names() -> None:
    with pytest.raises(ValueError, match="heuristic.*naive.*'kfsb'"):
        InputSplitSettings(heuristic="kfsb")
    with pytest.raises(ValueError, match="bf_period.*got 0"):
        InputSplitSettings(bf_period=0)
    with pytest.raises(ValueError, match="bounding.*crown.*'backward'"):
        InputSplitSettings(bounding="backward")


@pytest.mark.parametrize("in_blocks", [False, True])
def test_boxes_whose_turn_comes_too_late_stay_as_they_were(
    in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of many slow tiles ends with the time limit; a synchronous one ends whole."""
    monkeypatch.setattr(InputBounds, "tile", 16)
    network, where = three_clauses(0)
    boxes, asked = parts_of(where, 6), 0

    def late(_ahead: float) -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    settings = InputSplitSettings(bounding="crown")
    in_time = bounds_of(network, where, settings).bound(boxes)
    options = BoundOptions(out_of_time=late)
    found = bounds_of(network, where, settings, options, in_blocks=in_blocks).bound(boxes)
    assert asked == (0 if in_blocks else 4)
    whole = 64 if in_blocks else 32
    assert torch.equal(found.boxes.is_open[:whole], in_time.boxes.is_open[:whole])
    assert bool(found.boxes.is_open[whole:].all())
    assert not bool(in_time.boxes.is_open[32:].all())
