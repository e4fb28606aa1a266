"""Nodes of which this rank holds only some neurons, and what that means for bounds.

The graph of a rank of a tensor-parallel group has its own neurons in such nodes and all of the
others, so a pass through it is that of a smaller network; operators on the border exchange what is
needed. What is left for the engine: biases that are partial sums, rows that start at such nodes
(neurons are counted over all ranks there), sizes that all ranks must agree on, and errors that only
one rank meets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from auto_LiRPA_patches.errors import SoundnessError
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import (
    Communicator,
    of_first_rank,
    own_columns,
    total_of_parts,
)
from auto_LiRPA_patches.sharding.slices import Slices


@dataclass(frozen=True)
class Neurons:
    """Which nodes are split by neuron; by default none is.

    Attributes:
        group: the ranks that share a node.
        split: per node that is split, who holds which of its neurons.
        refined: whether bounds of split nodes are made by backward passes (`exact` of
            `parallel.tp_intermediate`), or left at their interval images (`ibp`).
    """

    group: Communicator = Communicator.single("tp")
    split: Mapping[int, Slices] = field(default_factory=dict)
    refined: bool = True

    def total(self, partial: Tensor) -> Tensor:
        """The sum over ranks of what each has of a value; replicated."""
        return total_of_parts(self.group, partial)

    def agreed(self, value: Tensor) -> Tensor:
        """What all ranks computed, as the first has it: slopes, steps and splits hang on it."""
        return of_first_rank(self.group, value)

    def agree_on(self, tensors: Mapping[int, Tensor]) -> None:
        """Overwrite what every rank optimises for itself (α, β per node) with the first rank's.

        Slopes that part would make the ranks' partial sums the bound of no functional; those of
        split nodes are their owner's alone.
        """
        if self.group.size == 1:
            return
        with torch.no_grad():
            for node, tensor in tensors.items():
                if node not in self.split:
                    tensor.copy_(self.agreed(tensor))

    def agreed_bounds(self, node: int, bounds: Interval) -> Interval:
        """Bounds of a node as the first rank has them; of a split node, as they are."""
        if node in self.split or self.group.size == 1:
            return bounds
        return Interval(self.agreed(bounds.lower), self.agreed(bounds.upper))

    def count(self, node: int, own: int) -> int:
        """Neurons of all ranks, where this one holds `own`."""
        return self.split[node].total if node in self.split else own

    def most(self, node: int, own: int) -> int:
        """The most neurons that any rank holds, where this one holds `own`; equal on all ranks."""
        return self.split[node].widest if node in self.split else own

    def among_all(self, node: int, wanted: Tensor) -> Tensor:
        """``[F]`` ascending, counted over all ranks: the neurons that their ranks want.

        Args:
            node: index of the node.
            wanted: ``[N]`` bool, of this rank's neurons.

        Communication: one all-gather of a byte per neuron where the node is split.
        """
        if node in self.split:
            slices = self.split[node]
            every = self.group.all_gather_uneven(wanted.to(torch.uint8), slices.sizes)
            wanted = every != 0
        return wanted.nonzero().squeeze(1)

    def own(self, node: int, elements: Tensor, values: Interval) -> tuple[Tensor, Interval]:
        """This rank's part of bounds of some neurons, differentiable.

        Args:
            node: index of the node.
            elements: ``[F]`` ascending, counted over all ranks.
            values: their bounds ``[B, F]``, replicated.

        Returns:
            ``[F']`` the neurons on this rank, as it counts them, and their bounds ``[B, F']``.
        """
        if node not in self.split:
            return elements, values
        slices = self.split[node]
        start = int((elements < slices.start).sum())
        stop = int((elements < slices.stop).sum())
        lower = own_columns(self.group, values.lower, start, stop)
        upper = own_columns(self.group, values.upper, start, stop)
        return elements[start:stop] - slices.start, Interval(lower, upper)

    def places(self, node: int, index: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
        """Where this rank holds neurons ``index [S]`` of all ranks, and `sign`, 0 if elsewhere."""
        if node not in self.split:
            return index, sign
        return self.split[node].places(index, sign)

    def require_sound(self, node: int, name: str, bounds: Interval) -> Interval:
        """`Interval.require_sound`; bounds of a split node are refused on all ranks or on none.

        Raises:
            NonFiniteBoundError, SoundnessError: on every rank, with the text of the first that
                found something.
        """
        if node not in self.split:
            return bounds.require_sound(name)
        failure: SoundnessError | None = None
        try:
            bounds = bounds.require_sound(name)
        except SoundnessError as error:
            failure = error
        if self.group.agree_any(failure is not None):
            raise next(found for found in self.group.all_gather_object(failure) if found)
        return bounds
