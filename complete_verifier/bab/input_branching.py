"""Choose inputs to split and make bounded children of boxes.

Shape letters: B boxes, I inputs (flat).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_pool import Boxes, halve
from complete_verifier.bab.input_settings import InputSplitSettings

Bound = Callable[[Boxes], Bounded]

# Fewer children than this are not worth a round of their own: the overhead of a bounding call is
# that of some tens of boxes of a small network.
FEW_CHILDREN = 64


def best_inputs(boxes: Boxes) -> Tensor:
    """``[B]`` the splittable input with the highest score; the first one where scores are equal.

    Only for boxes with a splittable input.
    """
    return boxes.score.masked_fill(~boxes.splittable, -torch.inf).argmax(dim=1)


def split_boxes(parents: Boxes, few: int) -> Boxes:
    """Halve every box, and halve again while few boxes result.

    Args:
        parents: at least one box, each with a splittable input.
        few: children wanted at most; a single halving may exceed it.

    Returns:
        At least two children per parent, covering it without a gap. Children that cannot be split
        any further stay as they are.
    """
    boxes = halve(parents, best_inputs(parents))
    while 2 * boxes.count <= few:
        can = boxes.splittable.any(dim=1)
        if not bool(can.any()):
            break
        boxes = _halved_where(boxes, can)
    return boxes


def _halved_where(boxes: Boxes, some: Tensor) -> Boxes:
    """The halves of some boxes, ``[B]`` bool, then the others."""
    again = boxes.select(some)
    return Boxes.concatenate([halve(again, best_inputs(again)), boxes.select(~some)])


def children(
    parents: Boxes,
    bound: Bound,
    settings: InputSplitSettings,
    few: int,
    round_number: int,
    briefly: Bound | None = None,
    most: int = 0,
) -> Bounded:
    """Split `parents` as the heuristic says and bound what results.

    Brute force is asked at every `bf_period`-th depth. Between, boxes are split by what it found
    for their ancestor, which is nearly as good (measured on ACAS Xu: 378 boxes asking always, 438
    asking at every fourth depth) and costs one pair of children in place of one per input. As long
    as the answer is followed, boxes are split twice before they are bounded: four grandchildren
    are less work than two children and then those of the ones that stay open, unless half of these
    are excluded (measured on ACAS Xu property 6: 14 rounds and 2.1 s, 18 and 2.3 s). While few
    boxes result, they are split down to the depth that asks next at once.

    Args:
        few: boxes are split several times while no more children than this result.
        round_number: of the search, for `bf_iters`.
        briefly: bounds the halves of which one pair per box is kept; None = as `bound` does.
        most: boxes are split twice while no more children than this result.
    """
    if settings.heuristic != "brute-force" or round_number >= settings.bf_iters:
        return bound(split_boxes(parents, few))
    due = _due(parents, settings)
    parts = []
    if bool(due.any()):
        asking = parents.select(due)
        size = max(1, settings.bf_batch_size // (2 * asking.lower.shape[1]))
        index = torch.arange(asking.count, device=asking.path.device)
        weigh = briefly or bound
        parts = [_try_all(asking.select(part), weigh, settings) for part in index.split(size)]
        if bool(due.all()) and 4 * asking.count <= few:
            parts = _carried_on(Bounded.concatenate(parts), bound, settings, few)
        few, most = few - 2 * asking.count, most - 2 * asking.count
    if not bool(due.all()):
        parts.append(_follow(parents.select(~due), bound, settings, few, most))
    return Bounded.concatenate(parts)


def _try_all(parents: Boxes, bound: Bound, settings: InputSplitSettings) -> Bounded:
    """Bound the halves of every splittable input of every box; keep the best pair of each.

    A pair is worth what it adds to the two margins below zero, and half of what the bound's plane
    promises: the former alone may find nothing to choose between for many splits in a row
    (measured: ACAS Xu property 5, net 1_1, 6 190 boxes with the promise, over 32 000 without).
    """
    splittable = parents.splittable
    which, dims = splittable.nonzero(as_tuple=True)
    tried = bound(halve(parents.select(which), dims))
    before = parents.margin[which].clamp(max=0.0).unsqueeze(1)
    after = tried.boxes.margin.view(-1, 2).clamp(max=0.0)
    gained = torch.nan_to_num((torch.maximum(after, before) - before).sum(dim=1))
    worth = parents.score.new_full(splittable.shape, -torch.inf)
    worth[which, dims] = gained.to(worth.dtype) + parents.score[which, dims] / 2
    best = worth.argmax(dim=1, keepdim=True)
    place = torch.zeros_like(splittable, dtype=torch.int64)
    place[which, dims] = torch.arange(which.shape[0], device=which.device)
    first = 2 * place.gather(1, best)
    pairs = tried.select(torch.cat([first, first + 1], dim=1).flatten())
    left = worth.scatter(1, best, worth.gather(1, best) / 2).repeat_interleave(2, dim=0)
    return _inherit(pairs, left, settings)


def _carried_on(
    pairs: Bounded, bound: Bound, settings: InputSplitSettings, few: int
) -> list[Bounded]:
    """Pairs that brute force found: what is open of them is split on, the rest stays."""
    boxes = pairs.boxes
    further = boxes.is_open & boxes.splittable.any(dim=1) & ~_due(boxes, settings)
    if not bool(further.any()):
        return [pairs]
    return [pairs.select(~further), _follow(boxes.select(further), bound, settings, few)]


def _follow(
    parents: Boxes, bound: Bound, settings: InputSplitSettings, few: int, most: int = 0
) -> Bounded:
    """Split at the input with the most worth left, by the last brute-force answer."""
    boxes, allowed = halve(parents, best_inputs(parents)), max(few, most)
    while True:
        further = boxes.splittable.any(dim=1) & ~_due(boxes, settings)
        count = int(further.sum())
        if count == 0 or boxes.count + count > allowed:
            break
        boxes, allowed = _halved_where(boxes, further), few
    return _inherit(bound(boxes), boxes.score, settings)


def _due(boxes: Boxes, settings: InputSplitSettings) -> Tensor:
    """``[B]`` bool: whether brute force is asked about a box."""
    return boxes.depth % settings.bf_period == 0


def _inherit(bounded: Bounded, worth: Tensor, settings: InputSplitSettings) -> Bounded:
    """Boxes that are not due for brute force next keep the inherited worth as their score."""
    boxes = bounded.boxes
    due = _due(boxes, settings).unsqueeze(1)
    return replace(bounded, boxes=replace(boxes, score=torch.where(due, boxes.score, worth)))
