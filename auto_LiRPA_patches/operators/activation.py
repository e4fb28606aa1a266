"""Elementwise nonlinear operators: the interface α-CROWN optimises through.

An activation is relaxed in two steps. `relax` sees the bounds of its input and keeps what does not
depend on α; `lines` turns that and an α (or the default) into two lines per element. α always
lives in [0, 1] and is projected *after* the optimiser's step: clamping inside the graph has a
zero gradient at the limits on torch 2.14, where α would start and never move.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import Operator
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.lines import Lines, LineStep
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class Relaxation:
    """Base of what `relax` keeps of the input bounds ``[B, N]``.

    Attributes:
        index: ``[F]`` features that get lines (union over the batch), None = all N.
    """

    index: Tensor | None


@dataclass(frozen=True)
class Activation(Operator):
    """``y_n = f(x_n)``, monotone increasing."""

    @property
    def needs_bounds(self) -> bool:
        return True

    @property
    def kink(self) -> float | None:
        """The point at which one split makes both sides exact; None where no point does."""
        return None

    @abstractmethod
    def function(self, value: Tensor) -> Tensor:
        """f, elementwise."""

    @abstractmethod
    def unstable(self, bounds: Interval) -> Tensor:
        """``[N]`` bool: elements whose relaxation is not exact for some box of the batch."""

    @abstractmethod
    def relax(self, bounds: Interval, features: Tensor | None) -> Relaxation:
        """The α-independent part over ``bounds [B, N]``; differentiable in the bounds.

        Args:
            features: ``[F]`` indices to relax; every unstable element must be among them
                (others are treated as exact). None = all elements.
        """

    @abstractmethod
    def initial_alpha(self, relaxation: Relaxation) -> Tensor:
        """``[K, B, F]`` in [0, 1]: the α that gives CROWN's lines."""

    @abstractmethod
    def lines(self, relaxation: Relaxation, alpha: Tensor | None) -> Lines:
        """Two lines per element for ``alpha [K, S, B, F]``, or CROWN's own for None.

        Claim: sound for every alpha in [0, 1].
        """

    def carry_alpha(self, alpha: Tensor, before: Interval, after: Interval) -> Tensor:
        """The α for narrower bounds that comes closest to the lines of ``alpha [K, ...]``.

        Args:
            alpha: ``[K, ...]`` in [0, 1].
            before, after: bounds ``[...]`` of the same elements, `after` within `before`.
        """
        return alpha

    def forward(self, weights: WeightSource, *inputs: Tensor) -> Tensor:
        return self.function(inputs[0])

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        return Interval(self.function(inputs[0].lower), self.function(inputs[0].upper))

    def backward(
        self, weights: WeightSource, coeffs: Tensor, lines: Any | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        if not isinstance(lines, LineStep):
            raise TypeError(f"{self.name}: an activation needs the lines of its input's bounds")
        is_flat = len(self.input_shapes[0]) == 1
        below, bias = lines.step(coeffs if is_flat else coeffs.flatten(2))
        if not is_flat:
            below = below.view(*coeffs.shape[:2], *self.input_shapes[0])
        return (below,), bias


def pick(values: Tensor, index: Tensor | None) -> Tensor:
    """``[B, N]`` at the relaxed features: ``[B, F]``."""
    return values if index is None else torch.index_select(values, 1, index)
