"""A row of a product has the same bits at any place of a tile, however narrow the layer.

A failure lets two ranks, which have a subproblem at different places, go on from different bounds.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.sharding import matrix_blocks
from auto_LiRPA_patches.sharding.matrix_blocks import register_blocks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights

HEIGHT = 64


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("deep", [5, 24, 50, 171])
def test_a_row_keeps_its_bits_at_any_place(deep: int, transposed: bool) -> None:
    torch.manual_seed(deep)
    weights = OneRankWeights()
    rows = torch.randn(HEIGHT, deep)
    orders = [torch.randperm(HEIGHT, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    for wide in range(1, 15):
        up = _layer(weights, deep, wide, transposed)
        down = _layer(weights, wide, deep, transposed)
        values, coeffs = up.apply(weights, rows), down.adjoint(weights, rows)
        for order in orders:
            assert torch.equal(up.apply(weights, rows[order]), values[order])
            assert torch.equal(down.adjoint(weights, rows[order]), coeffs[order])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("height", [16, 48, 64, 128])
def test_a_row_keeps_its_bits_in_a_product_made_in_blocks(height: int, transposed: bool) -> None:
    """Sums over blocks are added up in place, which is another routine."""
    torch.manual_seed(height)
    weights = OneRankWeights()
    rows = torch.randn(height, 170)
    orders = [torch.randperm(height, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    for wide in (3, 17, 64, 250):
        shape = (170, wide) if transposed else (wide, 170)
        with patch.object(matrix_blocks, "_MOST_AT_ONCE", 170 * wide // 3):
            blocks = register_blocks(weights, f"layer of {wide}", torch.randn(shape))
        assert len(blocks) > 1
        up = Linear("up", ((170,),), (wide,), blocks, None, transposed)
        down = Linear("down", ((wide,),), (170,), blocks, None, not transposed)
        values, coeffs = up.apply(weights, rows), down.adjoint(weights, rows)
        for order in orders:
            assert torch.equal(up.apply(weights, rows[order]), values[order])
            assert torch.equal(down.adjoint(weights, rows[order]), coeffs[order])


def _layer(weights: OneRankWeights, inputs: int, outputs: int, transposed: bool) -> Linear:
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    name = f"layer {len(weights.handles)}"
    handle = weights.register(name, torch.randn(shape))
    return Linear(name, ((inputs,),), (outputs,), (handle,), None, transposed)
