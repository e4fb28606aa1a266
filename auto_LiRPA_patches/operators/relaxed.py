"""Operators whose relaxation has an α but is not one line per element: products, softmax."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from auto_LiRPA_patches.operators.base import Operator
from auto_LiRPA_patches.operators.interval import Interval


@dataclass(frozen=True)
class Relaxed(Operator):
    """The counterpart of `Activation` for such operators; the optimiser treats both alike."""

    @property
    def needs_bounds(self) -> bool:
        return True

    @property
    def scratch_elements(self) -> int:
        """Elements per row of the largest tensor its backward step makes beside its result."""
        return 0

    @abstractmethod
    def relax(self, *bounds: Interval) -> Any:
        """The α-independent part over the inputs' bounds ``[B, *shape]``; differentiable."""

    @abstractmethod
    def initial_alpha(self, relaxation: Any) -> Tensor:
        """``[K, B, F]`` in [0, 1]: the α that gives CROWN's relaxation."""

    @abstractmethod
    def lines(self, relaxation: Any, alpha: Tensor | None) -> Any:
        """What `backward` takes, for ``alpha [K, S or 1, B, F]``, or CROWN's own for None.

        Claim: sound for every alpha in [0, 1].
        """
