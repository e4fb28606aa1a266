"""Newton steps towards inputs that satisfy all rows of a clause at once.

A clause with several rows, such as ``-r <= y_1 <= r`` beside others, holds on a thin set that
steps along one gradient's signs jump across. Here each point takes the shortest step, in units of
the inputs' widths, that makes the rows it violates hold in the network's linearisation.

Layout: P points, I inputs, O outputs, M rows of the longest clause.
Reference: Nocedal and Wright, Numerical optimization (2006), section 11.1, Newton's method for
underdetermined equations, damped as in section 10.3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.objective import ClauseObjective
from complete_verifier.specification import Region

_DAMPING = 1e-6  # relative to the rows' mean square slope
_OVERSHOOT = 1e-3  # a row is aimed at this share of its violation below its limit


def repair(
    forward: Callable[[Tensor], Tensor],
    region: Region,
    points: np.ndarray,
    accept: Callable[[np.ndarray], Counterexample | None],
    *,
    steps: int,
) -> Counterexample | None:
    """Move points towards the clause each is closest to satisfying, all its rows together.

    Args:
        forward: ``[P, I]`` float32 -> ``[P, O]``, differentiable; wherever it computes.
        points: ``[P, I]``; moved into the region's box first.
        accept: ``[I]`` float32 -> the counterexample it is, or None; asked once per step at most.
        steps: Newton steps; the points are looked at before each and after the last.
    """
    box = SearchBox.of(region)
    if box is None or points.shape[0] == 0 or not region.clauses:
        return None
    lower, upper = torch.as_tensor(box.lower), torch.as_tensor(box.upper)
    objective = ClauseObjective.of(region.clauses)
    where = torch.as_tensor(points, dtype=torch.float32)
    for left in range(steps, -1, -1):
        where = torch.minimum(torch.maximum(where, lower), upper)
        if box.ball is not None:
            where = torch.from_numpy(box.nearest(where.double().numpy()).astype(np.float32))
        where = where.requires_grad_(True)
        with torch.enable_grad():
            outputs = forward(where).cpu().double()
        finite = torch.isfinite(outputs.detach()).all(dim=1)
        usable = outputs.detach().masked_fill(~finite.unsqueeze(1), 0.0)
        margins = objective.margins(usable.expand(len(region.clauses), *usable.shape))  # [K, P, M]
        worst = (margins * objective.scale.unsqueeze(1)).amax(dim=2)
        holds = objective.satisfied(margins).any(dim=0) & finite
        if bool(holds.any()):
            best = int(worst.amin(dim=0).masked_fill(~holds, torch.inf).argmin())
            found = accept(where[best].detach().cpu().numpy())
            if found is not None:
                return found
        if left:
            nearest = worst.argmin(dim=0)
            own = margins[nearest, torch.arange(where.shape[0])]  # [P, M]
            slopes = _output_slopes(outputs, where)
            rows = objective.coefficients[nearest] @ slopes  # [P, M, I]
            move = _shortest_step(own, rows * (upper - lower).double())
            where = where.detach() + (move * (upper - lower)).float()
    return None


def _output_slopes(outputs: Tensor, where: Tensor) -> Tensor:
    """``[P, O, I]`` float64 derivative of each output by each input."""
    with torch.enable_grad():
        sums = outputs.sum(dim=0).unbind()
    columns = [torch.autograd.grad(one, where, retain_graph=True)[0].double() for one in sums]
    return torch.stack(columns, dim=1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _shortest_step(margins: Tensor, slopes: Tensor) -> Tensor:
    """``[P, I]``: the least-norm step that brings the violated rows below their limits.

    Args:
        margins: ``[P, M]``, positive where a row is violated; -inf for padding.
        slopes: ``[P, M, I]`` of the margins.
    """
    violated = margins.clamp(min=0)
    active = (margins >= 0).double().unsqueeze(2) * slopes
    gram = active @ active.transpose(1, 2)
    size = gram.diagonal(dim1=1, dim2=2).mean(dim=1).clamp(min=1e-30)
    damped = gram + torch.diag_embed((_DAMPING * size).unsqueeze(1).expand(violated.shape))
    weights = torch.linalg.solve(damped, violated.unsqueeze(2) * (1 + _OVERSHOOT))
    return -(active.transpose(1, 2) @ weights).squeeze(2)
