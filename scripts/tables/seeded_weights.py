"""Weights made from a seed, a part at a time: a layer too wide for one rank is never made whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph, Node
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.sharding.weights import ParameterShare, WeightHandle, WeightSource

_BLOCK = 256


class SeededWeights(WeightSource):
    """Makes the places of a weight along its first axis block by block, alike for every part.

    Uniform in +-1/sqrt(inputs), as PyTorch makes its layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._scales: list[float] = []

    def promise(self, shape: tuple[int, ...], inputs: int) -> WeightHandle:
        """A weight of this shape, of a layer with so many inputs."""
        name = f"weight {len(self._handles)}"
        handle = WeightHandle(len(self._handles), name, shape, torch.float32)
        self._handles.append(handle)
        self._scales.append(1.0 / math.sqrt(inputs))
        return handle

    def gather(self, handle: WeightHandle) -> Tensor:
        """All of it."""
        return self.part(handle, 0, 0, handle.shape[0])

    def part(self, handle: WeightHandle, axis: int, start: int, size: int) -> Tensor:
        """Places of the first axis; blocks that they share with other ranks are made whole."""
        if axis != 0:
            raise ValueError(f"{handle.name}: parts are made along the first axis, not {axis}")
        made = torch.empty(size, *handle.shape[1:])
        for block in range(start // _BLOCK, -(-(start + size) // _BLOCK)):
            generator = torch.Generator().manual_seed(1_000_003 * handle.index + block)
            values = torch.rand(_BLOCK, *handle.shape[1:], generator=generator)
            values = values.mul_(2).sub_(1).mul_(self._scales[handle.index])
            first, last = max(start, block * _BLOCK), min(start + size, (block + 1) * _BLOCK)
            own = values[first - block * _BLOCK : last - block * _BLOCK]
            made[first - start : last - start] = own
        return made

    def share(self) -> tuple[ParameterShare, ...]:
        """Nothing is held."""
        return ()

    def empty_like(self) -> SeededWeights:
        """Another one."""
        return SeededWeights()

    def held(self) -> tuple[Tensor, ...]:
        """Nothing."""
        return ()

    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        raise TypeError("weights from a seed take none over")

    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        raise TypeError("weights from a seed take none over")


def one_zone(name: str) -> Graph:
    """The network ``zone:INPUTSxWIDTHxOUTPUTS``; its weights do not exist yet."""
    inputs, width, outputs = (int(part) for part in name.removeprefix("zone:").split("x"))
    weights = SeededWeights()
    first = Linear(
        "first",
        ((inputs,),),
        (width,),
        (weights.promise((width, inputs), inputs),),
        weights.promise((width,), inputs),
    )
    # Stored by input, the axis that a row layer is cut along.
    last = Linear(
        "last",
        ((width,),),
        (outputs,),
        (weights.promise((width, outputs), width),),
        weights.promise((outputs,), width),
        transposed=True,
    )
    relu = Relu("relu", ((width,),), (width,))
    nodes = (
        Node("input", None, (), (inputs,)),
        Node("first", first, (0,), (width,)),
        Node("relu", relu, (1,), (width,)),
        Node("last", last, (2,), (outputs,)),
    )
    return Graph(nodes, 3, weights)
