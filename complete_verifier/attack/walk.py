"""The moving points of an attack: where they start and how they step.

Layout: K clauses, R restarts of each, I inputs, O outputs, M rows of the longest clause; all K * R
points go through the network together. Positions are float64 and the network reads them rounded to
float32. The limits of the box are float32 numbers, so rounding cannot leave the box, and steps far
below the spacing of float32 still add up.

Every length is a fraction of the input's own width, and gradients are taken per width: an input
1e-6 wide and one 100 wide are searched alike, and no threshold decides that either is fixed.

References: Madry et al. 2018, arXiv:1706.06083, section 2.1 (PGD); Kingma and Ba 2015,
arXiv:1412.6980, algorithm 1 (moments); Croce and Hein 2020, arXiv:2003.01690, algorithm 1 (halving
the step at the best point); Tashiro, Song and Ermon 2020, arXiv:2003.06878, section 3 (starts along
random output directions). Differs: halving is decided per point, by a count of steps without
progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from complete_verifier.attack.box import SearchBox
from complete_verifier.attack.objective import ClauseObjective
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.specification import Clause

_AUTO_STEP = 0.25  # of an input's width
_MOMENTS = (0.9, 0.99)
_DIVERSIFYING_STEPS = 10
# Squares of gradients below this, relative to a point's largest, vanish in float32.
_TINY = 1e-21
_PATIENCE = 5  # steps without progress before a point's step is halved
_SMALLEST_FACTOR = 1e-3  # of the first step; below it the point starts anew


class Walk:
    """The state of one batch of clauses: positions, moments, and each point's best so far."""

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        box: SearchBox,
        clauses: Sequence[Clause],
        restarts: int,
        settings: AttackSettings,
        generator: torch.Generator,
        device: torch.device | None,
    ) -> None:
        self._forward = forward
        self._box = box
        self._settings = settings
        self._generator = generator
        self._lower = torch.as_tensor(box.lower, device=device).double()  # [I]
        self._upper = torch.as_tensor(box.upper, device=device).double()
        self._width = self._upper - self._lower
        self._objective = ClauseObjective.of(clauses, device)
        self._step_length = self._first_step()  # [I]
        self._points = self._random_points(len(clauses), restarts)  # [K, R, I]
        self._best_points = self._points.clone()
        # Gradients are scaled to 1, so float32 serves them and their moments.
        self._best_gradient = torch.zeros_like(self._points, dtype=torch.float32)
        self._mean = torch.zeros_like(self._best_gradient)
        self._square = torch.zeros_like(self._best_gradient)
        column = self._best_gradient[:, :, 0]  # [K, R]
        self._best_loss = torch.full_like(column, math.inf, dtype=torch.float64)
        self._factor = torch.ones_like(column)
        self._age = torch.zeros_like(column)  # steps since the moments were cleared
        self._idle = torch.zeros_like(column)  # steps without progress
        self._directions: Tensor | None = None
        self._inputs, self._margins, self._finite = torch.empty(0), torch.empty(0), torch.empty(0)
        self.best_margin = math.inf
        self.steps_done = 0

    def prepare(self, diversifying: bool) -> int:
        """Spread the starting points; return how many calls of `diversify` belong to them.

        Restart 0 of a clause is the centre. Of three others in a row one stays uniform, one is a
        corner with a random share of inputs at their upper limit (uniform points all look like the
        centre to a network with many inputs), and one takes a full step along a random direction
        of the outputs.
        """
        restarts = self._points.shape[1]
        share = self._random((*self._points.shape[:2], 1))
        corners = torch.where(self._random(self._points.shape) < share, self._upper, self._lower)
        self._points[:, 2::3] = self._inside(corners[:, 2::3])
        self._points[:, 0] = self._lower + self._width / 2
        if diversifying:
            return _DIVERSIFYING_STEPS
        if restarts > 1:
            self._points[:, 1::3] = self._along_outputs(self._points[:, 1::3], self._width)
        return 0

    def diversify(self) -> None:
        """Move all points but the centre a step along their own random output direction."""
        self._points[:, 1:] = self._along_outputs(self._points[:, 1:], _AUTO_STEP * self._width)

    def look(self) -> tuple[np.ndarray, float] | None:
        """Run the network at the points; return the best satisfying one ([I] float32), its margin.

        Outputs that are not finite satisfy nothing.
        """
        self._inputs, outputs = self._evaluate(self._points)
        self._finite = torch.isfinite(outputs.detach()).all(dim=2)
        with torch.enable_grad():
            usable = outputs.masked_fill(~self._finite.unsqueeze(2), 0.0)
            self._margins = self._objective.margins(usable)
        margins = self._margins.detach()
        worst = margins.amax(dim=2).masked_fill(~self._finite, math.inf).flatten()
        self.best_margin = min(self.best_margin, float(worst.min()))
        satisfied = (self._objective.satisfied(margins) & self._finite).flatten()
        if not bool(satisfied.any()):
            return None
        best = int(worst.masked_fill(~satisfied, math.inf).argmin())
        return self._inputs[best].detach().cpu().numpy().copy(), float(worst[best])

    def step(self) -> None:
        """Move every point once, down the loss of the outputs `look` has just seen."""
        with torch.enable_grad():
            loss = self._objective.loss(self._margins, self._settings.loss_mode)
        gradient = self._gradient(self._inputs, loss, self._finite)
        loss = loss.detach().masked_fill(~self._finite, math.inf)
        stuck = (gradient == 0).all(dim=2)
        self._return_where_idle(loss, gradient)
        if self._box.ball is not None:
            self._points = self._towards_lowest(gradient)
            self.steps_done += 1
            return
        decay = self._settings.step_decay**self.steps_done
        direction = self._adam(gradient) * (decay * self._factor).unsqueeze(2)
        self._points = self._inside(self._points - direction * self._step_length)
        self._start_anew(stuck | (self._factor < _SMALLEST_FACTOR))
        self.steps_done += 1

    def _towards_lowest(self, gradient: Tensor) -> Tensor:
        """Part of the way to where the linearised loss is least in the ball.

        Frank and Wolfe 1956, Naval Research Logistics Quarterly 3, section 2; steps 2 / (t + 2).
        """
        slope = gradient.double() / self._width.clamp(min=torch.finfo(torch.float64).tiny)
        lowest = torch.from_numpy(self._box.lowest(slope.cpu().numpy())).to(self._points.device)
        share = 2.0 / (self.steps_done + 2.0)
        return self._inside(self._points + share * (lowest - self._points))

    def _return_where_idle(self, loss: Tensor, gradient: Tensor) -> None:
        """Note progress; send points without any back to their best, with half the step.

        Args:
            loss: [K, R].
            gradient: [K, R, I] at the points; rows of points sent back are overwritten with the
                gradient at their best.
        """
        better = loss < self._best_loss
        self._best_loss = torch.where(better, loss, self._best_loss)
        self._best_points[better] = self._points[better]
        self._best_gradient[better] = gradient[better]
        self._idle = torch.where(better, 0, self._idle + 1)
        worn = self._idle >= _PATIENCE
        self._factor = torch.where(worn, self._factor / 2, self._factor)
        self._points[worn] = self._best_points[worn]
        gradient[worn] = self._best_gradient[worn]
        self._forget(worn)

    def _adam(self, gradient: Tensor) -> Tensor:
        """Update the moments; return the direction, entries about 1 in size, [K, R, I]."""
        first, second = _MOMENTS
        self._age += 1
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # The corrections of a young mean and spread are one number per point.
        correction = (1 - second**self._age).sqrt() / (1 - first**self._age)
        direction = self._mean / self._square.sqrt().clamp_min_(_TINY)
        return direction.mul_(correction.unsqueeze(2))

    def _start_anew(self, where: Tensor) -> None:
        """Redraw points ([K, R] bool) that have no gradient or nothing left to gain."""
        if not bool(where.any()):
            return
        fresh = self._random_points(*self._points.shape[:2])
        self._points[where] = fresh[where]
        self._best_loss.masked_fill_(where, math.inf)
        self._factor.masked_fill_(where, 1.0)
        self._forget(where)

    def _forget(self, where: Tensor) -> None:
        """Clear the moments of points ([K, R] bool) that jump."""
        for state in (self._mean, self._square, self._age, self._idle):
            state[where] = 0.0

    def _along_outputs(self, points: Tensor, length: Tensor) -> Tensor:
        """`points` [K, R', I] moved by `length` [I] along a random output direction each."""
        if points.shape[1] == 0:
            return points
        inputs, outputs = self._evaluate(points)
        if self._directions is None or self._directions.shape != outputs.shape:
            self._directions = 2 * self._random(outputs.shape) - 1
        finite = torch.isfinite(outputs.detach()).all(dim=2)
        with torch.enable_grad():
            usable = outputs.masked_fill(~finite.unsqueeze(2), 0.0)
            loss = (usable * self._directions).sum(dim=2)
        return self._inside(points - length * self._gradient(inputs, loss, finite).sign())

    def _evaluate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """`points` [K, R, I] as the network reads them ([K * R, I] float32); outputs [K, R, O]."""
        inputs = points.reshape(-1, points.shape[2]).to(torch.float32).requires_grad_(True)
        with torch.enable_grad():
            outputs = self._forward(inputs).reshape(*points.shape[:2], -1).double()
        return inputs, outputs

    def _gradient(self, inputs: Tensor, loss: Tensor, finite: Tensor) -> Tensor:
        """[K, R, I] float32: change of loss per width; a point's largest entry is 1, or all are 0.

        Args:
            loss: [K, R], computed from the network's outputs at `inputs`.
            finite: [K, R] bool; the other points have no loss to descend.
        """
        with torch.enable_grad():
            total = loss.masked_fill(~finite, 0.0).sum()
        (raw,) = torch.autograd.grad(total, inputs)
        gradient = raw.reshape(*loss.shape, -1).to(torch.float64, copy=True)
        # An overflow still has a sign; a nan has nothing to say.
        limit = float(torch.finfo(torch.float32).max)
        gradient = gradient.nan_to_num_(nan=0.0, posinf=limit, neginf=-limit).mul_(self._width)
        gradient[~finite] = 0.0
        largest = gradient.abs().amax(dim=2, keepdim=True)
        return (gradient / torch.where(largest > 0, largest, 1.0)).float()

    def _first_step(self) -> Tensor:
        """[I], in input units."""
        size = self._settings.step_size
        if size is None:
            return _AUTO_STEP * self._width
        if self._settings.step_relative_to_width:
            return size * self._width
        return torch.full_like(self._width, size)

    def _inside(self, points: Tensor) -> Tensor:
        inside = torch.minimum(torch.maximum(points, self._lower), self._upper)
        if self._box.ball is None:
            return inside
        return torch.from_numpy(self._box.nearest(inside.cpu().numpy())).to(points.device)

    def _random_points(self, num_clauses: int, restarts: int) -> Tensor:
        """[K, R, I], uniform in the box."""
        shape = (num_clauses, restarts, len(self._lower))
        return self._inside(self._lower + self._random(shape) * self._width)

    def _random(self, shape: Sequence[int]) -> Tensor:
        """Uniform in [0, 1), drawn on the CPU so that every device sees the same numbers."""
        numbers = torch.rand(tuple(shape), generator=self._generator, dtype=torch.float64)
        return numbers.to(self._lower.device)
