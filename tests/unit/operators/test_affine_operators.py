"""Linear, convolutions, BatchNorm and constants, against torch's own functions in float64.

A failure means that a coefficient reaches the wrong element, or an offset is counted twice or
lost: every bound through such a layer would be of another network.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.base import AffineOperator, sum_bias
from auto_LiRPA_patches.operators.convolution import BatchNorm, Conv
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.sharding import matrix_blocks
from auto_LiRPA_patches.sharding.added_weights import AddedWeights
from auto_LiRPA_patches.sharding.matrix_blocks import register_blocks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators import operator_checks as checks
from tests.unit.operators.operator_checks import Case


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(20)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def linear(
    transposed: bool,
    bias: bool,
    lead: tuple[int, ...],
    size: tuple[int, int] = (4, 3),
    most: int = 100,
) -> Case:
    """`size` outputs and inputs, in blocks of `most` weights."""
    weights, weight, offset = OneRankWeights(), randn(*size), randn(size[0]) if bias else None
    with patch.object(matrix_blocks, "_MOST_AT_ONCE", most):
        blocks = register_blocks(weights, "w", weight.T.contiguous() if transposed else weight)
    assert (len(blocks) > 1) == (size[0] * size[1] > most)
    operator = Linear(
        "linear",
        ((*lead, size[1]),),
        (*lead, size[0]),
        weight=blocks,
        bias=None if offset is None else weights.register("b", offset),
        transposed=transposed,
    )
    return Case(operator, weights, lambda x: F.linear(x, weight, offset))


def conv(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    bias: bool = True,
) -> Case:
    weights, channels = OneRankWeights(), 4
    weight = randn(6, channels // groups, *kernel)
    offset = randn(6) if bias else None
    convolve = F.conv1d if len(size) == 1 else F.conv2d

    def reference(x: Tensor) -> Tensor:
        return convolve(x, weight, offset, stride, padding, dilation, groups)

    operator = Conv(
        "conv",
        ((channels, *size),),
        tuple(reference(torch.zeros(1, channels, *size, dtype=torch.float64)).shape[1:]),
        weight=weights.register("w", weight),
        bias=None if offset is None else weights.register("b", offset),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    return Case(operator, weights, reference)


def batch_norm(space: tuple[int, ...]) -> Case:
    weights = OneRankWeights()
    gamma, beta, mean, variance = randn(3), randn(3), randn(3), torch.rand(3).double() + 0.1
    operator = BatchNorm(
        "norm",
        ((3, *space),),
        (3, *space),
        gamma=weights.register("gamma", gamma),
        beta=weights.register("beta", beta),
        mean=weights.register("mean", mean),
        variance=weights.register("variance", variance),
        epsilon=1e-3,
    )
    return Case(
        operator, weights, lambda x: F.batch_norm(x, mean, variance, gamma, beta, False, 0.0, 1e-3)
    )


def scale_shift(
    reference: Callable[[Tensor, Tensor], Tensor],
    constant: tuple[int, ...],
    use: str,
    factor: float = 1.0,
    shift_sign: float = 1.0,
    divide: bool = False,
) -> Case:
    weights, value = OneRankWeights(), randn(*constant) + 3
    handle = weights.register("c", value)
    shape = (3, 2, 4)
    operator = ScaleShift(
        "scaled",
        (shape,),
        shape,
        scale=handle if use == "scale" else None,
        shift=handle if use == "shift" else None,
        factor=factor,
        shift_sign=shift_sign,
        divide=divide,
    )
    return Case(operator, weights, lambda x: reference(x, value))


def multiply_by_zero() -> Case:
    weights = OneRankWeights()
    zero = torch.zeros(4, dtype=torch.float64)
    operator = ScaleShift("scaled", ((3, 4),), (3, 4), scale=weights.register("c", zero))
    return Case(operator, weights, lambda x: x * zero)


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: linear(False, True, ()),
    "linear-no-bias": lambda: linear(False, False, ()),
    "linear-transposed": lambda: linear(True, True, ()),
    "linear-leading-axes": lambda: linear(False, True, (2, 5)),
    "linear-transposed-leading-axis": lambda: linear(True, True, (2,)),
    "linear-in-blocks": lambda: linear(False, True, (), (20, 18), 100),
    "linear-transposed-in-blocks": lambda: linear(True, True, (), (18, 20), 100),
    "linear-narrow-blocks": lambda: linear(False, True, (), (7, 3), 8),
    "linear-blocks-of-one-row": lambda: linear(True, False, (), (3, 5), 3),
    "linear-leading-axis-in-blocks": lambda: linear(False, True, (2,), (20, 18), 100),
    "linear-transposed-leading-axes-in-blocks": lambda: linear(True, True, (2, 2), (18, 20), 100),
    "conv1d": lambda: conv((7,), (3,), (1,), (0,), (1,), 1),
    "conv1d-stride-leaves-a-cell": lambda: conv((8,), (3,), (2,), (0,), (1,), 1),
    "conv1d-dilated-groups": lambda: conv((9,), (2,), (3,), (1,), (2,), 2),
    "conv2d": lambda: conv((5, 4), (3, 2), (1, 1), (0, 0), (1, 1), 1),
    "conv2d-padded": lambda: conv((5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, bias=False),
    "conv2d-stride-leaves-cells": lambda: conv((6, 7), (3, 3), (2, 3), (0, 1), (1, 1), 1),
    "conv2d-kernel-smaller-than-stride": lambda: conv((7, 6), (1, 1), (3, 2), (0, 0), (1, 1), 1),
    "conv2d-padding-beyond-kernel": lambda: conv((3, 3), (2, 2), (2, 2), (2, 3), (1, 1), 1),
    "conv2d-strided-in-phases": lambda: conv((8, 6), (4, 3), (2, 2), (1, 1), (1, 1), 1),
    "conv2d-strided-otherwise": lambda: conv((8, 7), (3, 2), (3, 3), (1, 0), (1, 1), 1),
    "conv2d-dilated": lambda: conv((7, 8), (3, 2), (2, 1), (2, 0), (2, 3), 1),
    "conv2d-depthwise": lambda: conv((4, 5), (2, 2), (1, 2), (1, 1), (1, 1), 2),
    "batch-norm-1d": lambda: batch_norm(()),
    "batch-norm-2d": lambda: batch_norm((4, 2)),
    "add-full": lambda: scale_shift(lambda x, c: x + c, (3, 2, 4), "shift"),
    "add-per-channel": lambda: scale_shift(lambda x, c: x + c, (3, 1, 1), "shift"),
    "add-last-axis": lambda: scale_shift(lambda x, c: x + c, (4,), "shift"),
    "add-scalar": lambda: scale_shift(lambda x, c: x + c, (), "shift"),
    "value-minus-constant": lambda: scale_shift(
        lambda x, c: x - c, (2, 1), "shift", shift_sign=-1.0
    ),
    "constant-minus-value": lambda: scale_shift(lambda x, c: c - x, (4,), "shift", factor=-1.0),
    "multiply": lambda: scale_shift(lambda x, c: x * c, (1, 2, 4), "scale"),
    "multiply-by-zero": multiply_by_zero,
    "divide": lambda: scale_shift(lambda x, c: x / c, (3, 1, 1), "scale", divide=True),
    "negate": lambda: scale_shift(lambda x, c: -x, (), "none", factor=-1.0),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, seed: None) -> Case:
    return CASES[request.param]()


def test_value_equals_torch(case: Case) -> None:
    checks.check_value(case)


def test_backward_step_is_the_exact_adjoint(case: Case) -> None:
    checks.check_affine_step(case)


def test_interval_image_is_the_exact_range(case: Case) -> None:
    checks.check_affine_interval(case)


def test_gradient_of_the_backward_step(case: Case) -> None:
    checks.check_gradient_of_step(case)


def test_gradient_of_the_value(case: Case) -> None:
    checks.check_gradient_of_value(case)


def test_one_rows_adjoint_is_a_row_of_the_matrix() -> None:
    """`select_rows` replaces a product with a one-hot matrix; it must pick the same row."""
    for transposed, most in product((False, True), (100, 5)):
        made = linear(transposed, True, (), most=most)
        operator = made.operator
        assert isinstance(operator, AffineOperator)
        index, sign = torch.tensor([2, 0, 2, 1]), torch.tensor([1.0, -1.0, -1.0, 0.0]).double()
        picked = operator.select_rows(made.weights, index, sign)
        assert picked is not None
        matrix, _ = checks.dense(made)
        torch.testing.assert_close(picked, matrix[index] * sign[:, None])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("most", [100, 5])
def test_a_layer_between_some_of_its_neurons(transposed: bool, most: int) -> None:
    made = linear(transposed, True, (), (5, 4), most)
    layer = made.operator
    assert isinstance(layer, Linear)
    matrix, bias = checks.dense(made)
    for outputs, inputs in product((None, torch.tensor([0, 4])), (None, torch.tensor([1]))):
        added = AddedWeights(made.weights)
        narrow = layer.at(made.weights, added, outputs, inputs)
        rows = torch.arange(5) if outputs is None else outputs
        columns = torch.arange(4) if inputs is None else inputs
        unit = torch.eye(len(rows), dtype=torch.float64)
        torch.testing.assert_close(narrow.adjoint(added, unit), matrix[rows][:, columns])
        zero = torch.zeros(1, len(columns), dtype=torch.float64)
        torch.testing.assert_close(narrow.forward(added, zero)[0], bias[rows])


def test_rows_of_a_layer_with_leading_axes_are_not_selected() -> None:
    """The flat index of an element is no row index of the matrix there."""
    made = linear(False, True, (2,))
    operator = made.operator
    assert isinstance(operator, AffineOperator)
    assert operator.select_rows(made.weights, torch.tensor([0]), torch.ones(1).double()) is None


def test_biases_that_hold_for_every_box_add_up_with_those_of_each() -> None:
    of_each = torch.tensor([[1.0, 2.0, 3.0]])
    total = sum_bias([torch.ones(1, 1), None, torch.ones(1, 1), of_each])
    assert total is not None and total.tolist() == [[3.0, 4.0, 5.0]]
