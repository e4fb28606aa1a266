"""Each heuristic splits where it says it does, and every child list covers its parents.

The bounding is replaced by formulas, so that the expected choice can be written down.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_branching import Bound, best_inputs, children, split_boxes
from complete_verifier.bab.input_pool import Boxes, root_boxes
from complete_verifier.bab.input_settings import InputSplitSettings

BRUTE = InputSplitSettings(heuristic="brute-force")
SINGLY = 1  # children wanted at most: every box is split once


def unit_cube(count: int, inputs: int = 3) -> Boxes:
    root = root_boxes(torch.zeros(inputs), torch.ones(inputs), torch.zeros(1, dtype=torch.bool))
    boxes = root.select(torch.zeros(count, dtype=torch.int64))
    return replace(boxes, margin=torch.full((count,), -10.0, dtype=torch.float64))


def bounded_by(weights: list[float]) -> tuple[Bound, list[int]]:
    """A bounding whose margin is minus the weighted widths; it notes how many boxes it saw."""
    seen: list[int] = []

    def bound(boxes: Boxes) -> Bounded:
        seen.append(boxes.count)
        width = (boxes.upper - boxes.lower).double()
        margin = -(width * torch.tensor(weights, dtype=torch.float64)).sum(dim=1)
        known = replace(boxes, margin=margin, score=torch.zeros_like(boxes.lower))
        return Bounded(known, boxes.lower)

    return bound, seen


def volume(boxes: Boxes) -> float:
    return float((boxes.upper - boxes.lower).double().prod(dim=1).sum())


def test_the_best_score_wins_and_fixed_inputs_never() -> None:
    boxes = replace(
        unit_cube(3),
        score=torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [2.0, 2.0, -1.0]]),
        upper=torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]),
    )
    assert best_inputs(boxes).tolist() == [1, 2, 0]


@pytest.mark.parametrize(("count", "most", "expected"), [(1, 64, 64), (1, 8, 8), (40, 64, 80)])
def test_few_boxes_are_split_several_times(count: int, most: int, expected: int) -> None:
    parents = replace(unit_cube(count), score=torch.tensor([[4.0, 2.0, 0.5]]).expand(count, 3))
    result = split_boxes(parents, most)
    assert result.count == expected
    assert volume(result) == pytest.approx(count)
    if expected == 8:
        # Scores halve with every split: 4 -> 2, 2 = 2 (first wins) -> 1, 2 -> 1.
        assert (result.upper - result.lower)[0].tolist() == [0.25, 0.5, 1.0]


def test_boxes_that_cannot_be_split_further_are_kept() -> None:
    low = torch.tensor([1.0, 1.0, 1.0])
    high = torch.tensor([1.0, 1.0, 1.0 + 2 * 2**-23])
    parent = root_boxes(low, high, torch.zeros(1, dtype=torch.bool))
    result = split_boxes(parent, 64)
    assert result.count == 2
    assert float(result.lower[1, 2]) == float(result.upper[0, 2]) == 1.0 + 2**-23


def test_brute_force_takes_the_pair_that_gains_most() -> None:
    bound, seen = bounded_by([1.0, 2.0, 5.0])
    parents = replace(unit_cube(4), score=torch.zeros(4, 3))
    result = children(parents, bound, BRUTE, SINGLY, 0).boxes
    assert seen == [4 * 3 * 2]
    assert result.count == 8
    assert (result.upper - result.lower).tolist() == [[1.0, 1.0, 0.5]] * 8
    assert volume(result) == pytest.approx(4)


def test_brute_force_never_takes_a_fixed_input() -> None:
    bound, seen = bounded_by([1.0, 2.0, 5.0])
    parents = replace(unit_cube(2), score=torch.zeros(2, 3))
    upper = parents.upper.clone()
    upper[1, 2] = 0.0
    result = children(replace(parents, upper=upper), bound, BRUTE, SINGLY, 0).boxes
    assert seen == [2 * 3 + 2 * 2]
    assert (result.upper - result.lower)[2:].tolist() == [[1.0, 0.5, 0.0]] * 2


def test_where_no_pair_gains_the_bounds_plane_decides() -> None:
    bound, _ = bounded_by([0.0, 0.0, 0.0])
    parents = replace(unit_cube(1), score=torch.tensor([[0.1, 0.3, 0.2]]))
    parents = replace(parents, margin=torch.zeros(1, dtype=torch.float64))
    result = children(parents, bound, BRUTE, SINGLY, 0).boxes
    assert (result.upper - result.lower)[0].tolist() == [1.0, 0.5, 1.0]


def test_between_two_brute_forces_its_answer_is_followed() -> None:
    bound, seen = bounded_by([1.0, 4.0, 5.0])
    boxes = replace(unit_cube(1), score=torch.zeros(1, 3))
    widths = []
    for depth in range(5):
        assert int(boxes.depth[0]) == depth
        boxes = children(boxes, bound, BRUTE, SINGLY, depth).boxes.select(torch.tensor([0]))
        widths.append((boxes.upper - boxes.lower)[0].tolist())
    assert seen == [6, 2, 2, 2, 6]
    # Worth 5/4/1 at the root: input 2 (leaving 2.5), then 1 (2), then 2 (1.25), then 1 (1).
    assert widths[:4] == [[1, 1, 0.5], [1, 0.5, 0.5], [1, 0.5, 0.25], [1, 0.25, 0.25]]


def test_few_boxes_are_split_down_to_the_next_question_at_once() -> None:
    bound, seen = bounded_by([1.0, 4.0, 5.0])
    parent = replace(unit_cube(1), score=torch.zeros(1, 3))
    at_once = children(parent, bound, BRUTE, 64, 0).boxes
    assert seen == [6, 16]
    singly = parent
    for depth in range(4):
        singly = children(singly, bound, BRUTE, SINGLY, depth).boxes
    for one, other in zip(at_once.tensors, singly.tensors, strict=True):
        assert torch.equal(one, other)
    assert at_once.depth.tolist() == [4] * 16


@pytest.mark.parametrize(("count", "expected"), [(1, [6, 16]), (3, [18, 48]), (17, [102])])
def test_not_more_children_than_are_hardly_more_work(count: int, expected: list[int]) -> None:
    bound, seen = bounded_by([1.0, 4.0, 5.0])
    children(replace(unit_cube(count), score=torch.zeros(count, 3)), bound, BRUTE, 64, 0)
    assert seen == expected


@pytest.mark.parametrize(("most", "expected"), [(16, 16), (15, 8), (100, 16)])
def test_boxes_that_follow_an_answer_are_split_twice_where_there_is_room(
    most: int, expected: int
) -> None:
    """As they would be in two rounds that exclude nothing; never past the depth that asks next."""
    bound, seen = bounded_by([1.0, 4.0, 5.0])
    worth = torch.tensor([[0.1, 0.4, 0.3]]).expand(4, 3)
    parents = replace(unit_cube(4), score=worth, depth=torch.ones(4, dtype=torch.int32))
    twice = children(parents, bound, BRUTE, SINGLY, 1, most=most).boxes
    assert seen == [expected] and twice.count == expected
    assert volume(twice) == pytest.approx(4)
    once = children(parents, bound, BRUTE, SINGLY, 1).boxes
    if expected == 16:
        again = children(once, bound, BRUTE, SINGLY, 2).boxes
        for one, other in zip(twice.tensors, again.tensors, strict=True):
            assert torch.equal(one, other)
    mixed = replace(parents, depth=torch.tensor([1, 3, 3, 2], dtype=torch.int32))
    found = children(mixed, bound, BRUTE, SINGLY, 1, most=100).boxes
    assert sorted(found.depth.tolist()) == [3] * 4 + [4] * (2 + 2 + 4)
    assert volume(found) == pytest.approx(4)


def test_of_a_pair_only_what_is_open_is_split_on() -> None:
    plain, seen = bounded_by([1.0, 4.0, 5.0])

    def bound(boxes: Boxes) -> Bounded:
        bounded = plain(boxes)
        shut = boxes.excluded | (boxes.lower[:, 2:] >= 0.5)
        return replace(bounded, boxes=replace(bounded.boxes, excluded=shut))

    found = children(replace(unit_cube(1), score=torch.zeros(1, 3)), bound, BRUTE, 64, 0).boxes
    assert seen == [6, 8]
    assert found.count == 1 + 8
    assert volume(found) == pytest.approx(1)
    assert (~found.is_open).tolist() == [True] + [False] * 8


def test_brute_force_ends_after_its_rounds() -> None:
    bound, seen = bounded_by([1.0, 2.0, 5.0])
    settings = replace(BRUTE, bf_iters=3)
    children(unit_cube(50), bound, settings, 100, 2)
    children(unit_cube(50), bound, settings, 100, 3)
    assert seen == [300, 100]


def test_brute_force_bounds_in_batches_of_its_own() -> None:
    bound, seen = bounded_by([1.0, 2.0, 5.0])
    whole = children(unit_cube(10), bound, BRUTE, SINGLY, 0).boxes
    cut = children(unit_cube(10), bound, replace(BRUTE, bf_batch_size=18), SINGLY, 0).boxes
    assert seen == [60, 18, 18, 18, 6]
    assert torch.equal(whole.lower, cut.lower)
    assert torch.equal(whole.upper, cut.upper)
