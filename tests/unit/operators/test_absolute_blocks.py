"""Interval bounds of large layers: |L| in blocks gives what |L| whole gives, in little memory.

A failure means interval bounds of another layer, or a second copy of a layer in memory.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.operators import absolute
from auto_LiRPA_patches.operators.base import AffineOperator
from auto_LiRPA_patches.operators.convolution import Conv, ConvTranspose
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights

MIB = 1 << 20


def linear(weights: OneRankWeights, *, transposed: bool, inputs: int, outputs: int) -> Linear:
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    weight = weights.register("w", torch.randn(shape))
    return Linear(
        "linear", ((inputs,),), (outputs,), weight=(weight,), bias=None, transposed=transposed
    )


def convolution(
    weights: OneRankWeights, channels: tuple[int, int], groups: int = 1, *, transposed: bool = False
) -> AffineOperator:
    """3 x 3 on 4 x 4 planes, padded to their size."""
    first, second = channels[transposed], channels[not transposed]
    weight = weights.register("w", torch.randn(second, first // groups, 3, 3))
    shapes = ((channels[0], 4, 4),), (channels[1], 4, 4)
    sliding = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    if transposed:
        return ConvTranspose(
            "conv", *shapes, weight=weight, bias=None, output_padding=(0, 0), **sliding
        )
    return Conv("conv", *shapes, weight=weight, bias=None, **sliding)


def _box(operator: AffineOperator) -> Interval:
    lower = torch.randn(2, *operator.input_shapes[0])
    return Interval(lower, lower + torch.rand_like(lower))


@pytest.mark.parametrize("kind", ["matrix", "transposed", "conv", "grouped", "conv_transpose"])
def test_blocks_give_the_bounds_of_the_whole_layer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    weights = OneRankWeights()
    operator = {
        "matrix": lambda: linear(weights, transposed=False, inputs=7, outputs=11),
        "transposed": lambda: linear(weights, transposed=True, inputs=7, outputs=11),
        "conv": lambda: convolution(weights, (3, 5)),
        "grouped": lambda: convolution(weights, (4, 6), groups=2),
        "conv_transpose": lambda: convolution(weights, (3, 5), transposed=True),
    }[kind]()
    box = _box(operator)
    whole = operator.interval(weights, box)
    monkeypatch.setattr(absolute, "_MOST_AT_ONCE", 60)  # some outputs, and not all, at a time
    parts = operator.interval(weights, box)
    torch.testing.assert_close(parts.lower, whole.lower)
    torch.testing.assert_close(parts.upper, whole.upper)
    corners = torch.where(torch.rand(2, *operator.input_shapes[0]) > 0.5, box.upper, box.lower)
    value: Tensor = operator.forward(weights, corners)
    assert bool((parts.lower <= value + 1e-5).all() and (value <= parts.upper + 1e-5).all())


@pytest.mark.parametrize("kind", ["matrix", "conv"])
def test_interval_bounds_hold_one_block_beside_the_layer(kind: str) -> None:
    weights = OneRankWeights()
    operator = (
        linear(weights, transposed=False, inputs=2048, outputs=1500)  # 11.7 MiB
        if kind == "matrix"
        else convolution(weights, (512, 640))  # 11.3 MiB
    )
    box = _box(operator)
    with MemoryMeter() as meter:
        operator.interval(weights, box)
    assert 1 * MIB < meter.peak_bytes - weights.local_bytes < 5 * MIB
