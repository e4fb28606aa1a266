"""Weights held whole by this rank: `gather` hands out the registered tensor itself."""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, count_as
from auto_LiRPA_patches.sharding.weights import (
    ParameterShare,
    WeightHandle,
    WeightSource,
    dense_strides,
)


class OneRankWeights(WeightSource):
    """Keep every tensor as registered; shares memory with the caller's module.

    A tensor with gaps or overlaps is kept as a contiguous copy, as every other source returns it:
    the layout decides the bits of a product, and those must not depend on the source.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tensors: list[Tensor] = []

    def gather(self, handle: WeightHandle) -> Tensor:
        """Return the tensor itself; no copy, no communication."""
        self._check_mine(handle)
        return self._tensors[handle.index]

    def held(self) -> tuple[Tensor, ...]:
        """Return the tensors themselves."""
        return tuple(self._tensors)

    def share(self) -> tuple[ParameterShare, ...]:
        """Return the whole of each parameter."""
        return tuple(
            ParameterShare(
                name=handle.name,
                shape=handle.shape,
                full_numel=tensor.numel(),
                local_numel=tensor.numel(),
                local_bytes=tensor.nbytes,
            )
            for handle, tensor in zip(self._handles, self._tensors, strict=True)
        )

    def empty_like(self) -> OneRankWeights:
        """Return a source that holds its weights whole."""
        return OneRankWeights()

    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        tensor = tensor.to(device=device, dtype=handle.dtype)
        dense = dense_strides(tensor) == tensor.stride()
        self._tensors.append(tensor if dense else tensor.contiguous())
        count_as(MemoryKind.WEIGHTS, self._tensors[-1])

    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        kept = self._tensors[handle.index]
        return kept.data_ptr() == tensor.data_ptr() or kept.equal(tensor.to(kept))
