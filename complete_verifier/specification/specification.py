"""The one type every source of properties produces: VNN-LIB files, balls, boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.region import Region

if TYPE_CHECKING:
    from complete_verifier.specification.robustness import Robustness


@dataclass(frozen=True, eq=False)
class Specification:
    """The question asked: is there an x in some region's box with f(x) in that region's clauses?

    Claim: the answer is ``sat`` exactly when some region is violated; regions are independent.

    Args:
        regions: at least one; boxes may overlap, and may be empty.
        source: where the property came from, for messages.
        num_inputs, num_outputs: flat sizes, I and O.

    Raises:
        SpecificationError: no region, or a region of other sizes.
    """

    regions: tuple[Region, ...]
    source: str
    num_inputs: int
    num_outputs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "regions", tuple(self.regions))
        if not self.regions:
            raise SpecificationError(f"{self.source}: expected at least one region, got none")
        for region in self.regions:
            if region.num_inputs != self.num_inputs:
                raise SpecificationError(
                    f"{self.source}: expected regions over {self.num_inputs} inputs, "
                    f"got one over {region.num_inputs}"
                )
            if region.clauses and region.clauses[0].num_outputs != self.num_outputs:
                raise SpecificationError(
                    f"{self.source}: expected clauses over {self.num_outputs} outputs, "
                    f"got one over {region.clauses[0].num_outputs}"
                )

    @staticmethod
    def linf(
        x: object,
        eps: float | Sequence[float] | np.ndarray,
        label: int,
        *,
        lowest: object = -np.inf,
        highest: object = np.inf,
        targets: Sequence[int] | None = None,
    ) -> Robustness:
        """The statement that `label` stays the highest output within `eps` of `x`.

        See `complete_verifier.specification.robustness.linf` for the arguments.
        """
        from complete_verifier.specification.robustness import linf

        return linf(x, eps, label, lowest=lowest, highest=highest, targets=targets)

    def for_network(
        self, num_outputs: int, scores: Callable[[np.ndarray], np.ndarray]
    ) -> Specification:
        """Itself: unlike a `Robustness`, it needs to know nothing of the network."""
        return self

    def shifted(self, offset: float) -> Specification:
        """The property with `offset` added to the right side of every output constraint."""
        regions = tuple(
            replace(region, clauses=tuple(clause.shifted(offset) for clause in region.clauses))
            for region in self.regions
        )
        return replace(self, regions=regions)

    @property
    def num_clauses(self) -> int:
        """Number of clauses in all regions together."""
        return sum(len(region.clauses) for region in self.regions)

    @property
    def is_empty(self) -> bool:
        """Whether no input satisfies the constraints, so that the answer is ``unsat`` at once.

        Usually a mistake in the property; whoever reports the verdict should say so.
        """
        return all(region.is_empty for region in self.regions)
