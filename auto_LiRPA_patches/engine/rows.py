"""Rows of a backward pass: which functionals of which node are bounded together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.operators.base import AffineOperator, num_elements


@dataclass(frozen=True)
class NeuronRows:
    """Signed elements of one node: ``sign_s * node[index_s]``.

    Attributes:
        index: ``[S]`` into the flattened node, int64; where it is split, into that of all ranks.
        sign: ``[S]``, +1 for a lower bound, -1 for (minus) an upper bound, 0 for padding.
    """

    index: Tensor
    sign: Tensor

    @staticmethod
    def both_sides(elements: Tensor, dtype: torch.dtype) -> NeuronRows:
        """Rows for the lower and then the upper bound of each of ``elements [F]``."""
        ones = torch.ones(elements.shape[0], dtype=dtype, device=elements.device)
        return NeuronRows(torch.cat([elements, elements]), torch.cat([ones, -ones]))

    @property
    def count(self) -> int:
        """Number of rows S."""
        return int(self.index.shape[0])

    def narrow(self, start: int, stop: int) -> NeuronRows:
        """Rows ``start <= s < stop``; rows beyond the last are zero padding."""
        index, sign = self.index[start:stop], self.sign[start:stop]
        missing = stop - start - index.shape[0]
        if missing > 0:
            index = torch.cat([index, index.new_zeros(missing)])
            sign = torch.cat([sign, sign.new_zeros(missing)])
        return NeuronRows(index, sign)

    def coefficients(self, graph: Graph, node: int, batch: int) -> Tensor:
        """One-hot coefficients ``[S, B, *shape]`` at the node itself."""
        shape = graph.nodes[node].shape
        rows = self.sign.new_zeros(self.count, num_elements(shape))
        index, sign = graph.neurons.places(node, self.index, self.sign)
        rows.scatter_(1, index[:, None], sign[:, None])
        return rows.view(self.count, 1, *shape).expand(-1, batch, *shape)

    def below(self, graph: Graph, node: int, batch: int) -> tuple[Tensor, Tensor | None] | None:
        """Coefficients and bias at the node's input, where that is a mere selection of weights."""
        operator = graph.nodes[node].operator
        if not isinstance(operator, AffineOperator):
            return None
        rows = operator.select_rows(graph.weights, self.index, self.sign)
        if rows is None:
            return None
        coeffs = rows.unsqueeze(1).expand(-1, batch, *rows.shape[1:])
        bias = operator.select_offset(graph.weights, self.index, self.sign)
        return coeffs, None if bias is None else bias.unsqueeze(1).expand(-1, batch)


@dataclass(frozen=True)
class SpecRows:
    """Linear functionals of one node given by their coefficients.

    Attributes:
        matrix: ``[S, *shape]``, the same for every box of the batch.
    """

    matrix: Tensor

    @property
    def count(self) -> int:
        """Number of rows S."""
        return int(self.matrix.shape[0])

    def narrow(self, start: int, stop: int) -> SpecRows:
        """Rows ``start <= s < stop``; rows beyond the last are zero padding."""
        rows = self.matrix[start:stop]
        missing = stop - start - rows.shape[0]
        if missing > 0:
            rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
        return SpecRows(rows)

    def coefficients(self, graph: Graph, node: int, batch: int) -> Tensor:
        """The coefficients ``[S, B, *shape]``."""
        return self.matrix.unsqueeze(1).expand(-1, batch, *self.matrix.shape[1:])

    def below(self, graph: Graph, node: int, batch: int) -> tuple[Tensor, Tensor | None] | None:
        """Nothing to shorten: the first step is an ordinary product."""
        return None


@dataclass(frozen=True)
class BatchRows:
    """Functionals of one node, other ones for each box or subproblem of the batch.

    Attributes:
        coeffs: ``[S, B, *shape]``.
    """

    coeffs: Tensor

    @property
    def count(self) -> int:
        """Number of rows S."""
        return int(self.coeffs.shape[0])

    def narrow(self, start: int, stop: int) -> BatchRows:
        """Rows ``start <= s < stop``; rows beyond the last are zero padding."""
        rows = self.coeffs[start:stop]
        missing = stop - start - rows.shape[0]
        if missing > 0:
            rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
        return BatchRows(rows)

    def coefficients(self, graph: Graph, node: int, batch: int) -> Tensor:
        """The coefficients ``[S, B, *shape]``."""
        return self.coeffs

    def below(self, graph: Graph, node: int, batch: int) -> tuple[Tensor, Tensor | None] | None:
        """Nothing to shorten: the first step is an ordinary product."""
        return None


Rows = NeuronRows | SpecRows | BatchRows


@dataclass(frozen=True)
class Chunking:
    """How rows are cut for one backward pass.

    Attributes:
        rows: rows per chunk, at least 1.
        padded: every chunk has exactly `rows` rows, the last one filled up with zero rows. Then
            each row's bits do not depend on how many others are computed beside it.
    """

    rows: int
    padded: bool = False

    def chunks(self, count: int) -> int:
        """How many chunks `count` rows are; no rows at all are one, an empty one."""
        return max(1, -(-count // self.rows))

    def ranges(self, count: int, chunks: int = 1) -> Iterator[tuple[int, int]]:
        """Half-open row ranges covering ``0 .. count``; padded ones may end beyond it.

        Empty ranges make them at least `chunks`: a rank with fewer rows takes the same steps as
        the others.
        """
        for number in range(max(self.chunks(count), chunks)):
            start = min(number * self.rows, count)
            stop = min(start + self.rows, count)
            yield start, start + self.rows if self.padded and start < stop else stop
