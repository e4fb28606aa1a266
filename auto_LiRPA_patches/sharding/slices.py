"""Neurons of one layer in contiguous slices, one per rank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Slices:
    """How N neurons lie on the R ranks of a group, as one of them sees it.

    Attributes:
        sizes: neurons per rank, in rank order; they may differ.
        rank: this rank.
    """

    sizes: tuple[int, ...]
    rank: int

    @staticmethod
    def even(neurons: int, ranks: int, rank: int) -> Slices:
        """Slices as equal as they can be: the first ``neurons % ranks`` hold one neuron more."""
        whole, rest = divmod(neurons, ranks)
        return Slices(tuple(whole + (r < rest) for r in range(ranks)), rank)

    @property
    def total(self) -> int:
        """Neurons of all ranks, N."""
        return sum(self.sizes)

    @property
    def own(self) -> int:
        """Neurons of this rank."""
        return self.sizes[self.rank]

    @property
    def widest(self) -> int:
        """The most neurons any rank holds; the same number on all ranks."""
        return max(self.sizes)

    @property
    def start(self) -> int:
        """The first neuron of this rank."""
        return sum(self.sizes[: self.rank])

    @property
    def stop(self) -> int:
        """The first neuron behind this rank's."""
        return self.start + self.own

    def places(self, index: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
        """Where this rank holds the neurons ``index [R]`` of all, and `sign`, 0 if elsewhere."""
        is_own = (index >= self.start) & (index < self.stop)
        return (index - self.start).clamp(0, max(self.own - 1, 0)), sign * is_own

    def take(self, whole: Tensor, dim: int = -1) -> Tensor:
        """This rank's part of a tensor that has all N neurons along `dim`; a view."""
        return whole.narrow(dim, self.start, self.own)
