"""Adam on tensors that are projected after each step.

`torch.optim.Adam` would do, but constructing one imports torch's compiler (1.6 s, more than most
bounds take). Remove this file when it no longer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        self._moments = {
            id(tensor): (torch.zeros_like(tensor), torch.zeros_like(tensor))
            for group in groups
            for tensor in group.tensors
        }

    def descend(self, loss: Tensor) -> None:
        """One step against the gradient of `loss`, which is released."""
        leaves = [tensor for group in self._groups for tensor in group.tensors]
        torch.autograd.backward(loss, inputs=leaves)
        self._steps += 1
        correction1 = 1 - _BETA1**self._steps
        correction2 = (1 - _BETA2**self._steps) ** 0.5
        with torch.no_grad():
            for group in self._groups:
                rate = group.rate * self._scale / correction1
                for tensor in group.tensors:
                    if tensor.grad is not None:
                        self._step(tensor, tensor.grad, rate, correction2)
                        tensor.grad = None
                    if group.low is not None or group.high is not None:
                        tensor.clamp_(group.low, group.high)
        self._scale *= self._decay

    def _step(self, tensor: Tensor, gradient: Tensor, rate: float, correction: float) -> None:
        first, second = self._moments[id(tensor)]
        first.lerp_(gradient, 1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        root = second.sqrt().div_(correction).add_(_EPSILON)
        tensor.addcdiv_(first, root, value=-rate)
