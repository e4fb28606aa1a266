"""What every operator must satisfy, checked against a plain torch function in float64.

Shape letters: S rows, B boxes, O and I elements of the output and of all inputs together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from auto_LiRPA_patches.operators.base import Operator
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights

Reference = Callable[..., Tensor]
"""The same mathematics in plain torch: ``[B, *input_shape]`` each -> ``[B, *output_shape]``."""


@dataclass(frozen=True)
class Case:
    """An operator beside the torch function it must agree with."""

    operator: Operator
    weights: OneRankWeights
    reference: Reference

    def random_inputs(self, batch: int) -> list[Tensor]:
        return [
            torch.randn(batch, *shape, dtype=torch.float64) for shape in self.operator.input_shapes
        ]


def random_box(shape: tuple[int, ...], batch: int) -> Interval:
    """A box ``[B, *shape]`` around the origin's neighbourhood; about a third of it is points."""
    center = torch.randn(batch, *shape, dtype=torch.float64)
    radius = torch.rand(batch, *shape, dtype=torch.float64) * 2
    radius = radius * (torch.rand_like(radius) > 0.3)
    return Interval(center - radius, center + radius)


def check_value(case: Case) -> None:
    inputs = case.random_inputs(batch=3)
    value = case.operator.forward(case.weights, *inputs)
    assert value.shape == (3, *case.operator.output_shape)
    torch.testing.assert_close(value, case.reference(*inputs), rtol=1e-12, atol=1e-12)


def check_affine_step(case: Case) -> None:
    """``coeffs . f(x) = sum_i new_i . x_i + bias`` for every x: both sides are affine in x."""
    rows, batch = 4, 3
    coeffs = torch.randn(rows, batch, *case.operator.output_shape, dtype=torch.float64)
    below, bias = case.operator.backward(case.weights, coeffs, None)
    for part, shape in zip(below, case.operator.input_shapes, strict=True):
        assert part.shape == (rows, batch, *shape)
    assert bias is None or bias.shape == (rows, batch)
    for _ in range(3):
        inputs = case.random_inputs(batch)
        direct = (coeffs * case.reference(*inputs)).flatten(2).sum(-1)
        through = torch.zeros(rows, batch, dtype=torch.float64) if bias is None else bias
        for part, value in zip(below, inputs, strict=True):
            through = through + (part * value).flatten(2).sum(-1)
        torch.testing.assert_close(through, direct, rtol=1e-11, atol=1e-11)


def check_affine_interval(case: Case) -> None:
    """The interval image of an affine map is its exact range, from its dense matrix."""
    boxes = [random_box(shape, 2) for shape in case.operator.input_shapes]
    image = case.operator.interval(case.weights, *boxes)
    matrix, offset = dense(case)
    lower = torch.cat([box.lower.flatten(1) for box in boxes], dim=1)
    upper = torch.cat([box.upper.flatten(1) for box in boxes], dim=1)
    positive, negative = matrix.clamp(min=0), matrix.clamp(max=0)
    smallest = lower @ positive.T + upper @ negative.T + offset
    largest = upper @ positive.T + lower @ negative.T + offset
    torch.testing.assert_close(image.lower.flatten(1), smallest, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(image.upper.flatten(1), largest, rtol=1e-11, atol=1e-11)


def check_gradient_of_step(case: Case) -> None:
    """The backward step is linear in the coefficients; its own gradient is checked numerically."""
    coeffs = torch.randn(2, 2, *case.operator.output_shape, dtype=torch.float64, requires_grad=True)

    def step(rows: Tensor) -> tuple[Tensor, ...]:
        below, bias = case.operator.backward(case.weights, rows, None)
        return below if bias is None else (*below, bias)

    assert torch.autograd.gradcheck(step, (coeffs,), fast_mode=True)


def check_gradient_of_value(case: Case) -> None:
    inputs = [value.requires_grad_(True) for value in case.random_inputs(batch=2)]
    assert torch.autograd.gradcheck(
        lambda *values: case.operator.forward(case.weights, *values), inputs, fast_mode=True
    )


def dense(case: Case) -> tuple[Tensor, Tensor]:
    """The matrix ``[O, I]`` and offset ``[O]`` of an affine reference, one column at a time."""
    shapes = case.operator.input_shapes
    zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
    offset = case.reference(*zeros).flatten()
    columns = []
    for position, shape in enumerate(shapes):
        size = zeros[position].numel()
        for unit in torch.eye(size, dtype=torch.float64):
            inputs = [*zeros]
            inputs[position] = unit.view(1, *shape)
            columns.append(case.reference(*inputs).flatten() - offset)
    return torch.stack(columns, dim=1), offset
