"""Choose inputs to split and make bounded children of boxes.

Shape letters: B boxes, I inputs (flat).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from complete_verifier.bab.input_bounds import Bounded
from complete_verifier.bab.input_pool import Boxes, halve
from complete_verifier.bab.input_settings import InputSplitSettings

Bound = Callable[[Boxes], Bounded]

# Fewer children than this are not worth a round of their own: the overhead of a bounding call is
# that of some tens of boxes of a small network.
_FEW_CHILDREN = 32


def best_inputs(boxes: Boxes) -> Tensor:
    """``[B]`` the splittable input with the highest score; the first one where scores are equal.

    Only for boxes with a splittable input.
    """
    return boxes.score.masked_fill(~boxes.splittable, -torch.inf).argmax(dim=1)


def split_boxes(parents: Boxes, most: int) -> Boxes:
    """Halve every box, and halve again while few boxes result.

    Args:
        parents: at least one box, each with a splittable input.
        most: children wanted at most; a single halving may exceed it.

    Returns:
        At least two children per parent, covering it without a gap. Children that cannot be split
        any further stay as they are.
    """
    boxes = halve(parents, best_inputs(parents))
    while 2 * boxes.count <= min(most, _FEW_CHILDREN):
        can = boxes.splittable.any(dim=1)
        if not bool(can.any()):
            break
        again = boxes.select(can)
        boxes = Boxes.concatenate([halve(again, best_inputs(again)), boxes.select(~can)])
    return boxes


def children(
    parents: Boxes, bound: Bound, settings: InputSplitSettings, most: int, round_number: int
) -> Bounded:
    """Split `parents` as the heuristic says and bound what results."""
    if settings.heuristic == "brute-force" and round_number < settings.bf_iters:
        size = max(1, settings.bf_batch_size // (2 * parents.lower.shape[1]))
        index = torch.arange(parents.count, device=parents.path.device)
        return Bounded.concatenate(
            [_try_all(parents.select(part), bound, settings) for part in index.split(size)]
        )
    return bound(split_boxes(parents, most))


def _try_all(parents: Boxes, bound: Bound, settings: InputSplitSettings) -> Bounded:
    """Bound the halves of every splittable input of every box; keep the best pair of each.

    A pair's score is the sum of its margins below zero, so that an excluded half counts 0. Where
    no pair reaches `bf_backup_thresh`, the smart score's pair is kept.
    """
    splittable = parents.splittable
    which, dims = splittable.nonzero(as_tuple=True)
    tried = bound(halve(parents.select(which), dims))
    loss = torch.where(tried.boxes.is_open, tried.boxes.margin.clamp(max=0.0), 0.0)
    value = loss.new_full(splittable.shape, -torch.inf)
    value[which, dims] = loss.view(-1, 2).sum(dim=1)
    # No margin at all (-inf) is still better than an input that cannot be split.
    value = torch.where(splittable, value.clamp(min=torch.finfo(value.dtype).min), value)
    best = value.argmax(dim=1)
    good = value.gather(1, best.unsqueeze(1)).squeeze(1) >= settings.bf_backup_thresh
    best = torch.where(good, best, best_inputs(parents))
    place = torch.full_like(splittable, -1, dtype=torch.int64)
    place[which, dims] = torch.arange(which.shape[0], device=which.device)
    first = 2 * place.gather(1, best.unsqueeze(1)).squeeze(1)
    return tried.select(torch.stack([first, first + 1], dim=1).flatten())
