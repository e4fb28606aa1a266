"""Linear layers: ONNX Gemm, and MatMul with a constant on either side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.block_product import BlockProduct, product
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True)
class Linear(AffineOperator):
    """``y = x W^T + b`` on the last axis.

    W is used as it is stored, S, one block of rows of S at a time: of a large layer no more than a
    block is gathered at once, plus what is on its way.

    Attributes:
        weight: handles of the blocks ``[n_k, M]`` of S ``[N, M]``.
        bias: handle of b, ``[out]``, or None.
        transposed: S is ``W^T [in, out]`` (a MatMul constant), else ``W [out, in]``.
    """

    weight: tuple[WeightHandle, ...]
    bias: WeightHandle | None
    transposed: bool = False

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        return self._times(weights, rows, not self.transposed, absolute=absolute)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return self._times(weights, rows, self.transposed)

    def image(self, weights: WeightSource, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """One gather of each block for both products."""
        shape, flipped = self._stored_shape, not self.transposed
        middle = BlockProduct(center, shape, transposed=flipped)
        around = BlockProduct(radius, shape, transposed=flipped, absolute=True)
        for handle in self.weight:
            _add(weights.gather(handle), middle, around)
        return middle.result, around.result

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None if self.bias is None else weights.gather(self.bias)

    def select_rows(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        if len(self.output_shape) != 1:
            return None
        if len(self.weight) == 1:
            block = weights.gather(self.weight[0])
            return (block.T if self.transposed else block)[index] * sign[:, None]
        rows = sign.new_empty(len(index), self.input_shapes[0][0])
        start = 0
        for handle in self.weight:
            stop = start + handle.shape[0]
            if self.transposed:
                rows[:, start:stop] = weights.gather(handle).T[index]
            else:
                _take_rows(weights.gather(handle), rows, index, start)
            start = stop
        return rows.mul_(sign[:, None])

    def at(
        self,
        weights: WeightSource,
        target: WeightSource,
        outputs: Tensor | None,
        inputs: Tensor | None,
    ) -> Linear:
        """The layer between some of its outputs and inputs, with parameters of its own.

        Args:
            weights: where this layer's parameters are.
            target: where the new ones are registered.
            outputs, inputs: ``[F]`` the neurons left; None = all. The other inputs count as zero.
        """
        left = self._stored_shape[::-1] if self.transposed else self._stored_shape
        shape = tuple(
            old if kept is None else len(kept)
            for old, kept in zip(left, (outputs, inputs), strict=True)
        )
        part = f"{self.name}, {shape[0]} outputs"
        bias = self.bias
        if outputs is not None:
            offset = self.offset(weights)
            if offset is not None:
                own = offset.expand(self.output_shape).index_select(0, outputs)
                bias = target.register(f"bias of {part}", own)
        return replace(
            self,
            weight=self._selected(weights, target, f"weight of {part}", outputs, inputs),
            bias=bias,
            input_shapes=(shape[1:],),
            output_shape=shape[:1],
        )

    @property
    def num_weights(self) -> int:
        """Elements of W."""
        rows, columns = self._stored_shape
        return rows * columns

    @property
    def _stored_shape(self) -> tuple[int, int]:
        return sum(handle.shape[0] for handle in self.weight), self.weight[0].shape[1]

    def _times(
        self, weights: WeightSource, rows: Tensor, transposed: bool, *, absolute: bool = False
    ) -> Tensor:
        """``rows @ S``, or ``rows @ S^T``."""
        if len(self.weight) == 1 and not absolute:  # nothing else is done in branch and bound
            block = weights.gather(self.weight[0])
            return product(rows, block.T if transposed else block)
        made = BlockProduct(rows, self._stored_shape, transposed=transposed, absolute=absolute)
        for handle in self.weight:
            _add(weights.gather(handle), made)
        return made.result

    def _selected(
        self,
        weights: WeightSource,
        target: WeightSource,
        name: str,
        outputs: Tensor | None,
        inputs: Tensor | None,
    ) -> tuple[WeightHandle, ...]:
        """Blocks of some rows and columns of S; those of which nothing is left are left out."""
        rows, columns = (inputs, outputs) if self.transposed else (outputs, inputs)
        made: list[WeightHandle] = []
        start = 0
        for handle in self.weight:
            stop = start + handle.shape[0]
            own = None if rows is None else rows[(rows >= start) & (rows < stop)] - start
            start = stop
            block = _part(weights.gather(handle), own, columns)
            if own is None or len(own) > 0:
                made.append(target.register(f"{name}[{len(made)}]", block))
        return tuple(made)


def _add(block: Tensor, *products: BlockProduct) -> None:
    # A function of its own, so that the block is let go before the next one is gathered.
    for made in products:
        made.add(block)


def _take_rows(block: Tensor, rows: Tensor, index: Tensor, start: int) -> None:
    """``rows[r] = S[index_r]`` where that is in the block, which begins at row `start` of S."""
    wanted = ((index >= start) & (index < start + block.shape[0])).nonzero().squeeze(1)
    rows[wanted] = block[index[wanted] - start]


def _part(block: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    if rows is not None:
        block = block.index_select(0, rows)
    if columns is not None:
        block = block.index_select(1, columns)
    return block.contiguous()
