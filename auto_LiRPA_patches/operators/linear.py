"""Linear layers: ONNX Gemm, and MatMul with a constant on either side."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.absolute import block_size
from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource


@dataclass(frozen=True)
class Linear(AffineOperator):
    """``y = x W^T + b`` on the last axis.

    Attributes:
        weight: handle of W, ``[out, in]``.
        bias: handle of b, ``[out]``, or None.
        transposed: W is stored as ``[in, out]`` (a MatMul constant), used as it lies.
    """

    weight: WeightHandle
    bias: WeightHandle | None
    transposed: bool = False

    def apply(self, weights: WeightSource, rows: Tensor, *, absolute: bool = False) -> Tensor:
        matrix = self._matrix(weights)
        if not absolute:
            return product(rows, matrix.T)
        products = [
            product(rows, part.abs().T) for part in matrix.split(block_size(*matrix.shape), dim=0)
        ]
        return products[0] if len(products) == 1 else torch.cat(products, -1)

    def adjoint(self, weights: WeightSource, rows: Tensor) -> Tensor:
        return product(rows, self._matrix(weights))

    def offset(self, weights: WeightSource) -> Tensor | None:
        return None if self.bias is None else weights.gather(self.bias)

    def select_rows(self, weights: WeightSource, index: Tensor, sign: Tensor) -> Tensor | None:
        if len(self.output_shape) != 1:
            return None
        return self._matrix(weights)[index] * sign[:, None]

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
        matrix, bias = self._matrix(weights), self.bias
        part = f"{self.name}, {self.output_shape[0] if outputs is None else len(outputs)} outputs"
        if outputs is not None:
            matrix = matrix.index_select(0, outputs)
            offset = self.offset(weights)
            if offset is not None:
                own = offset.expand(self.output_shape).index_select(0, outputs)
                bias = target.register(f"bias of {part}", own)
        if inputs is not None:
            matrix = matrix.index_select(1, inputs)
        weight = target.register(f"weight of {part}", matrix.contiguous())
        return replace(
            self,
            weight=weight,
            bias=bias,
            transposed=False,
            input_shapes=(matrix.shape[1:],),
            output_shape=matrix.shape[:1],
        )

    def _matrix(self, weights: WeightSource) -> Tensor:
        matrix = weights.gather(self.weight)
        return matrix.T if self.transposed else matrix


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
