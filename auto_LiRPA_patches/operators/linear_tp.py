"""Linear layers of which every rank of a tensor-parallel group holds some neurons.

A column layer is split by output neuron, a row layer by input neuron; what lies between a column
and a row layer is elementwise, and each rank computes it for its own neurons. Coefficients of such
neurons are this rank's columns of A; above and below the zone A is the same on all ranks.

Shapes (N neurons in all, n of them this rank's, R rows):

    crossing            rows on each rank    result on each rank     communication
    column, value       [R, in]              [R, n], own neurons     none
    column, backward    [R, n], own columns  [R, in], replicated     one all-reduce of R * in
    row, value          [R, n], own neurons  [R, out], replicated    one all-reduce of R * out
    row, backward       [R, out]             [R, n], own columns     none

The gradient of one direction is the other one (of a loss that is the same on all ranks), so what
autograd does needs no rule of its own. ``A . b`` of a column layer is a partial sum, which the
engine adds up with the biases of the zone; the bias of a row layer is added once, by the sum's
reader, being the same on all ranks.

What a backward pass of S rows over B boxes sends, in numbers, with in_z the inputs of the column
layer of zone z: ``S * B * in_z`` for each zone it leaves downwards, ``S * B`` for the biases of all
zones together, and ``S * (in_z + 1)`` in place of the first where it starts at the column layer of
zone z itself (the rows of W, not yet one per box). An interval pass sends ``2 * B * out_z`` per row
layer. A gradient pass sends as much at the row layers: ``S * B * out_z`` each.

Reference: Shoeybi et al. 2019 (arXiv 1909.08053), section 3, for the pair of layers. Differs: A is
what crosses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.slices import Slices
from auto_LiRPA_patches.sharding.weights import WeightSource


@dataclass(frozen=True)
class BoundLinearTPCol(Linear):
    """The rows of W, and the part of b, of this rank's output neurons.

    Attributes:
        slices: the output neurons of every rank.
        group: those ranks.
    """

    slices: Slices = Slices((0,), 0)
    group: Communicator = Communicator.single("tp")

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return self.group.all_reduce_sum(super().adjoint(weights, rows).contiguous())

    def select_rows(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        """As of the whole layer: `index` counts the neurons of all ranks, the result is replicated.

        Communication: one all-reduce of the result; every row comes from the rank that holds it.
        """
        place, own_sign = self.slices.places(index, sign)
        own = super().select_rows(weights, place, own_sign)
        return None if own is None else self.group.all_reduce_sum(own)

    def select_offset(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        """As of the whole layer, like `select_rows`."""
        place, own_sign = self.slices.places(index, sign)
        own = super().select_offset(weights, place, own_sign)
        return None if own is None else self.group.all_reduce_sum(own)


@dataclass(frozen=True)
class BoundLinearTPRow(Linear):
    """The columns of W of this rank's input neurons, and all of b.

    Attributes:
        slices: the input neurons of every rank.
        group: those ranks.
    """

    slices: Slices = Slices((0,), 0)
    group: Communicator = Communicator.single("tp")

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        partial = super().apply(weights, rows, absolute=absolute)
        return self.group.all_reduce_sum(partial.contiguous())

    def image(self, weights: WeightSource, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        own = super().image(weights, center, radius)
        return (
            self.group.all_reduce_sum(own[0].contiguous()),
            self.group.all_reduce_sum(own[1].contiguous()),
        )


@dataclass(frozen=True)
class _Border(AffineOperator):
    """Between a value that all ranks have and one that each has its own neurons of.

    Attributes:
        slices: the neurons of every rank.
        group: those ranks.
    """

    slices: Slices
    group: Communicator

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None

    def interval(self, weights: WeightSource, *inputs: Interval) -> Interval:
        lower = self.apply(weights, inputs[0].lower)
        return Interval(lower, self.apply(weights, inputs[0].upper))


@dataclass(frozen=True)
class OwnNeurons(_Border):
    """This rank's part of a replicated value: the way into a row layer that stands alone."""

    @staticmethod
    def of(name: str, slices: Slices, group: Communicator) -> OwnNeurons:
        """Of a value of N neurons."""
        return OwnNeurons(name, ((slices.total,),), (slices.own,), slices, group)

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        return self.slices.take(rows)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        """Columns of all ranks put together; one all-gather."""
        return all_columns(self.group, self.slices, rows)


@dataclass(frozen=True)
class AllNeurons(_Border):
    """The whole of a value that ranks hold in parts: the way out of a zone without a row layer."""

    @staticmethod
    def of(name: str, slices: Slices, group: Communicator) -> AllNeurons:
        """Of a value of N neurons."""
        return AllNeurons(name, ((slices.own,),), (slices.total,), slices, group)

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        """Neurons of all ranks put together; one all-gather."""
        return all_columns(self.group, self.slices, rows)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return self.slices.take(rows)


def all_columns(group: Communicator, slices: Slices, own: Tensor) -> Tensor:
    """``[R, n]``, other columns on every rank, as ``[R, N]`` on all."""
    padded = torch.nn.functional.pad(own, (0, slices.widest - slices.own))
    parts = group.all_gather(padded).unbind(0)
    return torch.cat([part[:, :size] for part, size in zip(parts, slices.sizes, strict=True)], 1)
