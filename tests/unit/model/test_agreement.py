"""A loaded network that is not the file's function is refused, whatever the reason.

This check is what stands between a converter's fault and a false proof.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper
from torch import Tensor

from complete_verifier.model.agreement import check_agreement
from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_session import OnnxSession
from complete_verifier.model.replay import run_onnx

WEIGHT = np.array([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]], dtype=np.float32)


@pytest.fixture(params=[1, "N"])
def path(request, write_onnx):
    gemm = helper.make_node("Gemm", ["x", "W"], ["h"])
    return write_onnx(
        [gemm, helper.make_node("Relu", ["h"], ["y"])], [request.param, 3], {"W": WEIGHT}
    )


def right(x: Tensor) -> Tensor:
    return torch.relu(x @ torch.from_numpy(WEIGHT))


def test_the_same_function_agrees(path) -> None:
    assert check_agreement(right, OnnxSession(path), "net") < 1e-6


def test_a_difference_above_the_tolerance_is_refused_with_its_size(path) -> None:
    with pytest.raises(ModelError, match=r"net: the loaded network differs .* by 0\.00[12]"):
        check_agreement(lambda x: right(x) + 0.001, OnnxSession(path), "net")


def test_a_difference_in_negative_inputs_only_is_found(path) -> None:
    with pytest.raises(ModelError, match="differs"):
        check_agreement(lambda x: right(x.abs()), OnnxSession(path), "net")


def test_a_difference_in_the_batch_is_found(path) -> None:
    """What a batch size of 1 baked into a Reshape does: every row answers for the first."""
    with pytest.raises(ModelError, match="differs"):
        check_agreement(lambda x: right(x[:1]).expand(len(x), -1), OnnxSession(path), "net")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(path, value: float) -> None:
    with pytest.raises(ModelError, match="differs from onnxruntime by (nan|inf)"):
        check_agreement(lambda x: right(x) + value, OnnxSession(path), "net")


def test_another_number_of_outputs_is_refused(path) -> None:
    with pytest.raises(ModelError, match=r"expected outputs of shape \[20, 2\]"):
        check_agreement(lambda x: right(x)[:, :1], OnnxSession(path), "net")


def test_a_network_that_fails_on_batches_is_refused(path) -> None:
    with pytest.raises(ModelError, match="fails on a batch of 20 inputs"):
        check_agreement(lambda x: right(x.reshape(1, 3)), OnnxSession(path), "net")


def test_random_state_of_the_caller_is_untouched(path) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    expected = (torch.rand(1).item(), np.random.rand())
    torch.manual_seed(3)
    np.random.seed(3)
    check_agreement(right, OnnxSession(path), "net")
    assert (torch.rand(1).item(), np.random.rand()) == expected


def test_replay_answers_for_one_flat_input(path) -> None:
    x = np.array([0.5, -1.0, 2.0])
    expected = np.maximum(x.astype(np.float32) @ WEIGHT, 0)
    assert run_onnx(path, x).dtype == np.float32
    np.testing.assert_allclose(run_onnx(path, x), expected, rtol=1e-6)


def test_replay_of_another_size_is_refused(path) -> None:
    with pytest.raises(ModelError, match="expected inputs of 3 elements"):
        run_onnx(path, np.zeros(4))


def test_a_file_that_onnxruntime_refuses(write_onnx) -> None:
    path = write_onnx([helper.make_node("NoSuchOperator", ["x"], ["y"])], [1, 3])
    with pytest.raises(ModelError, match="onnxruntime cannot load it"):
        OnnxSession(path)
