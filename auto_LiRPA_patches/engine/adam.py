"""Adam on tensors that are projected after each step.

`torch.optim.Adam` would do, but constructing one imports torch's compiler (1.6 s, more than most
bounds take). Remove this file when it no longer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, count_as, counted_as

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class ParameterGroup:
    """Tensors that share a step size and a projection.

    Attributes:
        tensors: leaves that require a gradient; updated in place.
        rate: first step size, in the tensors' unit.
        low, high: each element is projected to ``[low, high]`` after the step; None = no limit.
    """

    tensors: Sequence[Tensor]
    rate: float
    low: float | None
    high: float | None

    def project(self) -> None:
        """Move every element to the nearest value within its limits, in place."""
        if self.low is None and self.high is None:
            return
        for tensor in self.tensors:
            tensor.clamp_(self.low, self.high)


class ProjectedAdam:
    """Minimises by Adam (Kingma and Ba 2015, arXiv 1412.6980, algorithm 1), then projects.

    Projecting after the step, not inside the graph, keeps the gradient alive at the limits.
    """

    def __init__(self, groups: Sequence[ParameterGroup], decay: float) -> None:
        """Start with zero moments.

        Args:
            groups: what is optimised.
            decay: factor on every step size after each step.
        """
        self._groups = groups
        self._decay = decay
        self._scale = 1.0
        self._steps = 0
        with counted_as(MemoryKind.MULTIPLIERS):
            self._moments: dict[int, tuple[Tensor, ...]] = {
                id(tensor): (_zeros(tensor), _zeros(tensor))
                for group in groups
                for tensor in group.tensors
            }

    def gradients(self, loss: Tensor) -> tuple[Tensor | None, ...]:
        """What `move` wants, of `loss`, whose graph is released."""
        with counted_as(MemoryKind.COEFFICIENTS):
            gradients = torch.autograd.grad(loss, self.tensors, allow_unused=True)
        count_as(MemoryKind.MULTIPLIERS, *(own for own in gradients if own is not None))
        return gradients

    @property
    def tensors(self) -> list[Tensor]:
        """What is optimised, group by group."""
        return [tensor for group in self._groups for tensor in group.tensors]

    def move(self, gradients: Iterable[Tensor | None], *, ascend: bool = False) -> None:
        """One step against gradients, or along them; then the projection.

        Args:
            gradients: one for each of `tensors`; None where the tensor stays as it is.
        """
        self._steps += 1
        found = iter(gradients)
        with torch.no_grad():
            for group in self._groups:
                pairs = zip(group.tensors, found, strict=False)
                moved = [(tensor, own) for tensor, own in pairs if own is not None]
                if moved:
                    self._step(moved, group.rate * self._scale, ascend)
                group.project()
        self._scale *= self._decay

    def select(self, groups: Sequence[ParameterGroup], index: Tensor, dim: int) -> None:
        """Go on with `groups`, whose tensors are the present ones at ``index`` along `dim`."""
        moments = {}
        with counted_as(MemoryKind.MULTIPLIERS):
            for old, new in zip(self._groups, groups, strict=True):
                for before, after in zip(old.tensors, new.tensors, strict=True):
                    moments[id(after)] = tuple(
                        moment.index_select(dim, index) for moment in self._moments[id(before)]
                    )
        self._groups, self._moments = groups, moments

    def _step(self, moved: list[tuple[Tensor, Tensor]], rate: float, ascend: bool) -> None:
        # One fused pass over each tensor instead of seven. It pairs elements by their place in
        # memory, whatever the strides (torch 2.14, CPU): laid out otherwise than its tensor, a
        # gradient would move other elements.
        tensors = [tensor for tensor, _ in moved]
        laid_out = [tensor.contiguous() for tensor in tensors]
        moments = [self._moments[id(tensor)] for tensor in tensors]
        step = tensors[0].new_full((), float(self._steps), dtype=torch.float32)
        torch._fused_adam_(
            laid_out,
            [gradient.contiguous() for _, gradient in moved],
            [first for first, _ in moments],
            [second for _, second in moments],
            [],
            [step] * len(tensors),
            lr=rate,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=0.0,
            eps=_EPSILON,
            amsgrad=False,
            maximize=ascend,
        )
        for tensor, own in zip(tensors, laid_out, strict=True):
            if own is not tensor:
                tensor.copy_(own)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)
