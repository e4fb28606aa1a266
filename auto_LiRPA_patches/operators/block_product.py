"""Products with a matrix that is at hand one block of rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.absolute import block_size


class BlockProduct:
    """``rows @ S`` or ``rows @ S^T``, S ``[N, M]`` replaced by ``|S|`` on demand.

    Blocks of S are added in order, each once; none is kept. The first kind is a sum over blocks,
    in their order; of the second each block makes some columns.
    """

    def __init__(
        self, rows: Tensor, shape: tuple[int, int], *, transposed: bool, absolute: bool = False
    ) -> None:
        """Nothing added yet.

        Args:
            rows: ``[*, N]``, or ``[*, M]`` where S is `transposed`.
            shape: N and M.
            transposed: whether to multiply by ``S^T``.
            absolute: whether to multiply by ``|S|``.
        """
        self._rows = rows
        self._shape = shape
        self._transposed = transposed
        self._absolute = absolute
        self._start = 0
        self._result: Tensor | None = None

    def add(self, block: Tensor) -> None:
        """Take the next rows of S, ``[n, M]``."""
        if not self._absolute:
            self._add(block)
            return
        for part in block.split(block_size(*block.shape)):
            self._add(part.abs())

    @property
    def result(self) -> Tensor:
        """The product, ``[*, M]`` or ``[*, N]``.

        Raises:
            ValueError: not all of S was added.
        """
        if self._result is None or self._start != self._shape[0]:
            raise ValueError(f"product: {self._start} of {self._shape[0]} rows of S were added")
        return self._result

    def _add(self, block: Tensor) -> None:
        start, self._start = self._start, self._start + block.shape[0]
        if self._transposed:
            self._add_columns(block, start)
        else:
            self._add_up(block, self._rows.narrow(-1, start, block.shape[0]))

    def _add_columns(self, block: Tensor, start: int) -> None:
        columns = product(self._rows, block.T)
        if block.shape[0] == self._shape[0]:
            self._result = columns
            return
        if self._result is None:
            self._result = columns.new_empty(*columns.shape[:-1], self._shape[0])
        self._result.narrow(-1, start, block.shape[0]).copy_(columns)

    def _add_up(self, block: Tensor, rows: Tensor) -> None:
        depth, columns = block.shape
        if self._result is None:
            self._result = product(rows, block)
        elif columns < _WIDE:
            self._result += product(rows, block)
        else:  # without a second tensor of the result's size
            self._result.view(-1, columns).addmm_(rows.reshape(-1, depth), block)


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """``rows [*, K] @ matrix [K, N]``; in tiles a row's bits do not depend on its place.

    With fewer than twelve columns they would (measured with MKL, torch 2.14: N = 2 to 11, at every
    height and most depths); with more they never did. So a narrow matrix is filled up with zeros.
    """
    columns = matrix.shape[1]
    if columns >= _WIDE:
        # The same product; `matmul` looks at shapes first, which small batches feel.
        return torch.mm(rows, matrix) if rows.dim() == 2 else rows @ matrix
    filled = torch.nn.functional.pad(matrix, (0, _WIDE - columns))
    return (rows @ filled)[..., :columns].contiguous()


_WIDE = 16
