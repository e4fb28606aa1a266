"""A few steps of projected gradient descent from given points, without restarts.

Branch and bound knows inputs that come close to a violation; `pgd_attack` would start elsewhere.

Reference: Madry et al. 2018 (arXiv 1706.06083), section 2.1. Layout: P points, I inputs, K clauses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.objective import ClauseObjective
from complete_verifier.attack.settings import LossMode
from complete_verifier.specification import Region

_FIRST_STEP = 0.25  # of an input's width
_DECAY = 0.75


def descend(
    forward: Callable[[torch.Tensor], torch.Tensor],
    region: Region,
    points: np.ndarray,
    accept: Callable[[np.ndarray], Counterexample | None],
    *,
    steps: int,
    first_step: np.ndarray | None = None,
    decay: float = _DECAY,
) -> Counterexample | None:
    """Move points towards the clause each is closest to satisfying.

    Args:
        forward: ``[P, I]`` float32 -> ``[P, O]``, differentiable; wherever it computes.
        points: ``[P, I]`` float32; moved into the region's box first.
        accept: ``[I]`` float32 -> the counterexample it is, or None; asked once per step at most,
            about the best point that satisfies a clause.
        steps: gradient steps; the points are looked at before each and after the last.
        first_step: ``[P, I]`` length of the first step; None is a quarter of the region's width.
        decay: each step's length as a fraction of the one before.
    """
    box = SearchBox.of(region)
    if box is None or points.shape[0] == 0 or not region.clauses:
        return None
    lower = torch.as_tensor(box.lower)
    upper = torch.as_tensor(box.upper)
    objective = ClauseObjective.of(region.clauses)
    where = torch.as_tensor(points, dtype=torch.float32)
    step = _FIRST_STEP * (upper - lower)
    if first_step is not None:
        step = torch.as_tensor(first_step, dtype=torch.float32)
    for left in range(steps, -1, -1):
        where = torch.minimum(torch.maximum(where, lower), upper)
        if box.ball is not None:
            where = torch.from_numpy(box.nearest(where.double().numpy()).astype(np.float32))
        where = where.requires_grad_(True)
        with torch.enable_grad():
            outputs = forward(where).cpu().double()
            finite = torch.isfinite(outputs).all(dim=1)
            usable = outputs.masked_fill(~finite.unsqueeze(1), 0.0)
            margins = objective.margins(usable.expand(len(region.clauses), *usable.shape))
            loss = objective.loss(margins, LossMode.HINGE).amin(dim=0)
            total = loss.masked_fill(~finite, 0.0).sum()
        holds = objective.satisfied(margins).any(dim=0) & finite
        if bool(holds.any()):
            best = int(loss.detach().masked_fill(~holds, torch.inf).argmin())
            found = accept(where[best].detach().cpu().numpy())
            if found is not None:
                return found
        if left:
            (gradient,) = torch.autograd.grad(total, where)
            where = where.detach() - step * gradient.nan_to_num(nan=0.0).sign()
            step = step * decay
    return None
