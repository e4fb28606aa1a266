"""Adam's steps are those of torch's own, however tensors lie in memory.

A failure means that slopes are moved by other slopes' gradients: bounds stay sound, and get worse.
"""

from __future__ import annotations

import pytest
import torch

from auto_LiRPA_patches.engine.adam import ParameterGroup, ProjectedAdam

SHAPE = (2, 5, 7)


def _laid_out(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same values with dimensions in another order in memory."""
    back = [order.index(dim) for dim in range(len(order))]
    return values.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("ascend", [False, True])
@pytest.mark.parametrize("own", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
@pytest.mark.parametrize("other", [(0, 1, 2), (1, 0, 2)])
def test_each_element_is_moved_by_its_own_gradient(
    own: tuple[int, ...], other: tuple[int, ...], ascend: bool
) -> None:
    torch.manual_seed(0)
    start = torch.rand(SHAPE)
    tensor = _laid_out(start.clone(), own).requires_grad_()
    expected = start.clone().requires_grad_()
    reference = torch.optim.Adam([expected], lr=0.1, maximize=ascend)
    adam = ProjectedAdam([ParameterGroup([tensor], 0.1, None, None)], 1.0)
    for _ in range(4):
        gradient = torch.randn(SHAPE)
        expected.grad = gradient
        reference.step()
        adam.move([_laid_out(gradient, other)], ascend=ascend)
    torch.testing.assert_close(tensor, expected)
    assert tensor.stride() == _laid_out(start, own).stride()
    assert float((tensor.detach() - start).abs().mean()) > 0.05


def test_what_leaves_the_limits_is_projected() -> None:
    tensor = torch.tensor([0.05, 0.5, 0.95], requires_grad=True)
    adam = ProjectedAdam([ParameterGroup([tensor], 0.1, 0.0, 1.0)], 1.0)
    adam.move([torch.tensor([1.0, 0.0, -1.0])])
    assert tensor.tolist() == [0.0, 0.5, 1.0]
