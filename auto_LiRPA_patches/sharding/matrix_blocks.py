"""A matrix registered in blocks of rows, so that no rank has to hold a large layer whole.

What a rank gathers at a time is a block and not the layer: of a network whose largest layer is half
of its weights, ranks that share them by two would otherwise save a quarter instead of a half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.weights import WeightHandle, WeightSource, dense_strides

_MOST_AT_ONCE = 1 << 22
"""Elements of a block, 16 MiB in float32; smaller matrices are one block."""


def register_blocks(
    weights: WeightSource,
    name: str,
    matrix: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> tuple[WeightHandle, ...]:
    """Register ``[N, M]`` as blocks ``[n_k, M]`` of its rows, in order.

    How many follows from the shape alone: products block by block then have the same bits whether
    one rank holds the matrix or many do. One block keeps the name of the matrix.
    """
    if matrix.dim() != 2:
        raise ValueError(f"weight {name!r}: expected a matrix, got shape {list(matrix.shape)}")
    spans = list(_spans(*matrix.shape))
    if len(spans) == 1:
        return (weights.register(name, matrix, dtype=dtype, device=device),)
    return tuple(
        weights.register(f"{name}[{start}:{stop}]", matrix[start:stop], dtype=dtype, device=device)
        for start, stop in spans
    )


def matrix_name(blocks: Sequence[WeightHandle]) -> str:
    """The name under which the matrix was registered."""
    name = blocks[0].name
    return name if len(blocks) == 1 else name.rpartition("[")[0]


def part_of(
    weights: WeightSource, blocks: Sequence[WeightHandle], axis: int, start: int, size: int
) -> Tensor:
    """Rows (axis 0) or columns (axis 1) ``start .. start + size`` of a matrix, as a tensor that
    keeps no more than these alive.
    """
    if axis == 1:
        return torch.cat([weights.part(block, 1, start, size) for block in blocks])
    found, first = [], 0
    for block in blocks:
        begin, end = max(start - first, 0), min(start + size - first, block.shape[0])
        first += block.shape[0]
        if begin < end or len(blocks) == 1:
            found.append(weights.part(block, 0, begin, end - begin))
    return with_memory_of_its_own(found[0]) if len(found) == 1 else torch.cat(found)


def stored_by_columns(matrix: Tensor) -> bool:
    """Whether a block of rows of ``[N, M]`` would be scattered over its memory."""
    is_dense = dense_strides(matrix) == matrix.stride()
    return is_dense and matrix.stride(0) < matrix.stride(1)


def with_memory_of_its_own(part: Tensor) -> Tensor:
    """A view would keep the whole alive; what was made as a part is not copied again."""
    is_alone = part.is_contiguous() and part.untyped_storage().nbytes() == part.nbytes
    return part if is_alone else part.clone(memory_format=torch.contiguous_format)


def _spans(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    blocks = max(1, min(rows, -(-rows * columns // _MOST_AT_ONCE)))
    size = max(1, -(-rows // blocks))
    for start in range(0, max(rows, 1), size):
        yield start, min(start + size, rows)
