"""The minimum of a linear functional over a box, exact at the corner, and its gradient.

A failure means that every bound is off by the last step.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from auto_LiRPA_patches.engine.backward import concretize, overflow_to_nan
from tests.unit.engine import nets


@pytest.mark.parametrize("batch", [1, 3])
def test_it_is_the_minimum_over_all_corners(batch: int) -> None:
    torch.manual_seed(120)
    box = nets.boxes((2, 3), batch, 1.0)
    coeffs = torch.randn(4, batch, 6).double()
    coeffs[0, :, 2] = 0.0
    choices = torch.tensor(list(itertools.product((0.0, 1.0), repeat=6))).double()
    low, high = box.lower.flatten(1), box.upper.flatten(1)
    corners = low + choices[:, None, :] * (high - low)
    values = torch.einsum("sbn,cbn->csb", coeffs, corners)
    torch.testing.assert_close(concretize(coeffs, box), values.amin(0))


def test_one_input_keeps_its_bounds_bit_for_bit() -> None:
    """In float32: l and u, not what is left of them after a midpoint and a radius."""
    torch.manual_seed(121)
    box = nets.boxes((50,), 1, 3.0, torch.float32)
    eye = torch.eye(50).unsqueeze(1)
    assert torch.equal(concretize(eye, box)[:, 0], box.lower[0])
    assert torch.equal(-concretize(-eye, box)[:, 0], box.upper[0])


@pytest.mark.parametrize("batch", [1, 3])
def test_gradient_in_the_coefficients(batch: int) -> None:
    torch.manual_seed(122)
    box = nets.boxes((5,), batch, 1.0)
    coeffs = torch.randn(3, batch, 5).double().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda rows: concretize(rows, box), (coeffs,))


def test_an_overflow_upwards_becomes_nan_and_nothing_else_changes() -> None:
    given = torch.tensor([1.0, torch.inf, -torch.inf, torch.nan, 3e38])
    kept = overflow_to_nan(given)
    assert torch.equal(torch.isnan(kept), torch.tensor([False, True, False, True, False]))
    assert torch.equal(kept[[0, 2, 4]], given[[0, 2, 4]])
