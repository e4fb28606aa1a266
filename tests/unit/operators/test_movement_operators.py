"""Operators that move, drop, repeat, join and surround elements, and sums of perturbed values.

A failure means that a bound speaks of another element than it says.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import Operator, Shape
from auto_LiRPA_patches.operators.shape import Concat, ConstantPad, Reshape, Select, Transpose
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators import operator_checks as checks
from tests.unit.operators.operator_checks import Case


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(21)


def made(operator: Operator, reference: checks.Reference) -> Case:
    return Case(operator, OneRankWeights(), reference)


def transpose(shape: Shape, axes: tuple[int, ...]) -> Case:
    output = tuple(shape[axis] for axis in axes)
    operator = Transpose("t", (shape,), output, axes)
    return made(operator, lambda x: x.permute(0, *(axis + 1 for axis in axes)))


def select(axis: int, index: tuple[int, ...], drop_axis: bool = False) -> Case:
    shape = (3, 5, 2)
    kept = () if drop_axis else (len(index),)
    output = (*shape[:axis], *kept, *shape[axis + 1 :])
    operator = Select("s", (shape,), output, axis, index, drop_axis)
    if drop_axis:
        return made(operator, lambda x: x.select(axis + 1, index[0]))
    return made(operator, lambda x: x.index_select(axis + 1, torch.tensor(index)))


def concat(shapes: tuple[Shape, ...], axis: int) -> Case:
    output = list(shapes[0])
    output[axis] = sum(shape[axis] for shape in shapes)
    operator = Concat("c", shapes, tuple(output), axis)
    return made(operator, lambda *x: torch.cat(x, dim=axis + 1))


def pad(before: tuple[int, ...], after: tuple[int, ...], value: float) -> Case:
    shape = (2, 3, 4)[3 - len(before) :]
    output = tuple(a + n + b for a, n, b in zip(before, shape, after, strict=True))
    pads = [n for pair in zip(before, after, strict=True) for n in pair]
    last_axis_first = [n for axis in range(len(before) - 1, -1, -1) for n in pads[2 * axis :][:2]]
    operator = ConstantPad("p", (shape,), output, before, after, value)
    return made(operator, lambda x: F.pad(x, last_axis_first, value=value))


def add(shapes: tuple[Shape, ...], signs: tuple[float, ...]) -> Case:
    output = tuple(torch.broadcast_shapes(*shapes))

    def reference(*values: Tensor) -> Tensor:
        total = torch.zeros(values[0].shape[0], *output, dtype=torch.float64)
        for sign, value, shape in zip(signs, values, shapes, strict=True):
            ones = (1,) * (len(output) - len(shape))
            total = total + sign * value.reshape(value.shape[0], *ones, *shape)
        return total

    return made(Sum("a", shapes, output, signs), reference)


CASES: dict[str, Callable[[], Case]] = {
    "flatten": lambda: made(Reshape("r", ((2, 3, 2),), (12,)), lambda x: x.flatten(1)),
    "unsqueeze": lambda: made(Reshape("r", ((4,),), (1, 4, 1)), lambda x: x.view(-1, 1, 4, 1)),
    "identity": lambda: made(Reshape("r", ((2, 3),), (2, 3)), lambda x: x),
    "transpose-pair": lambda: transpose((2, 5), (1, 0)),
    "transpose-cycle": lambda: transpose((2, 3, 4), (1, 2, 0)),
    "transpose-cycle-back": lambda: transpose((2, 3, 4), (2, 0, 1)),
    "select": lambda: select(1, (1, 3)),
    "select-out-of-order": lambda: select(1, (4, 0, 2)),
    "select-repeated": lambda: select(1, (2, 2, 0, 2)),
    "select-scalar": lambda: select(1, (3,), drop_axis=True),
    "select-first-axis": lambda: select(0, (2, 0)),
    "select-last-axis-scalar": lambda: select(2, (1,), drop_axis=True),
    "concat": lambda: concat(((2,), (3,)), 0),
    "concat-three": lambda: concat(((2, 1, 3), (2, 4, 3), (2, 2, 3)), 1),
    "pad-zero": lambda: pad((0, 1, 2), (0, 3, 0), 0.0),
    "pad-value": lambda: pad((0, 1, 2), (1, 3, 0), -1.5),
    "pad-vector": lambda: pad((2,), (3,), 0.7),
    "sum": lambda: add(((3, 2), (3, 2)), (1.0, 1.0)),
    "difference": lambda: add(((3, 2), (3, 2)), (1.0, -1.0)),
    "sum-of-three": lambda: add(((4,), (4,), (4,)), (-1.0, 1.0, 1.0)),
    "sum-missing-axis": lambda: add(((2, 3, 4), (4,)), (1.0, 1.0)),
    "sum-missing-two-axes-and-ones": lambda: add(((2, 1, 3, 4), (3, 1)), (1.0, -1.0)),
    "sum-both-broadcast": lambda: add(((3, 1), (1, 4)), (1.0, 1.0)),
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


def test_a_shared_operand_counts_twice_in_the_image_of_a_sum() -> None:
    """The image of ``x - x`` knows nothing of the shared x; it must not collapse to zero."""
    case = add(((1,), (1,)), (1.0, -1.0))
    box = checks.random_box((1,), 1)
    image = case.operator.interval(case.weights, box, box)
    width = box.upper - box.lower
    torch.testing.assert_close(image.lower, -width)
    torch.testing.assert_close(image.upper, width)
