"""Labelled inputs as a data set gives them, before normalisation.

Shape letters: N examples, I inputs (flat).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from complete_verifier.data.errors import DataError


@dataclass(frozen=True, eq=False)
class Examples:
    """A data set, or what a loader of the user's own gives.

    Args:
        name: for messages and records.
        inputs: [N, *shape], numbers of any type; `divisor` makes them data.
        labels: [N] classes; -1 where there is none.
        divisor: 255 for images of bytes: pixel k is the number k / 255 in float64.
        lowest, highest: limits of valid inputs in data units, broadcast to [N, *shape]; None is
            no limit. For `specification.type: box` they are the input set.
        eps: radius per example or coordinate that a loader gives; None is `specification.epsilon`.
        targets: [N] the class to compare with, where a loader gives one.
        normalised: the network reads them as they are, and `data.mean` and `std` do not apply.

    Raises:
        DataError: numbers of inputs and labels differ, or there are none.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    divisor: float = 1.0
    lowest: np.ndarray | None = None
    highest: np.ndarray | None = None
    eps: np.ndarray | None = None
    targets: np.ndarray | None = None
    normalised: bool = False

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: expected labels [N] of integers, got {self.labels.dtype} "
                f"{list(self.labels.shape)}."
            )
        if len(self.inputs) != len(self.labels) or not len(self.labels):
            raise DataError(
                f"{self.name}: expected as many inputs as labels, got {len(self.inputs)} and "
                f"{len(self.labels)}."
            )
        if self.inputs.dtype.kind not in "iuf" or self.inputs.ndim < 2:
            raise DataError(
                f"{self.name}: expected inputs [N, ...] of numbers, got {self.inputs.dtype} "
                f"{list(self.inputs.shape)}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.inputs.shape[1:])

    def input(self, index: int) -> np.ndarray:
        """[*shape] float64, in data units."""
        value: np.ndarray = self.inputs[index].astype(np.float64) / self.divisor
        return value

    def limits(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest value of each coordinate, [*shape], infinite where there is none."""
        return self._limit(self.lowest, index, -np.inf), self._limit(self.highest, index, np.inf)

    def _limit(self, limit: np.ndarray | None, index: int, otherwise: float) -> np.ndarray:
        if limit is None:
            return np.full(self.shape, otherwise)
        return _one(limit, index, self.inputs.shape)


def _one(values: np.ndarray, index: int, shape: tuple[int, ...]) -> np.ndarray:
    """Example `index` of values that broadcast to [N, *shape]."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64), shape)[index]
