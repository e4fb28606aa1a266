"""The gate to `sat`. A failure here is a false alarm handed to a user as a fact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from complete_verifier.attack.counterexample import confirm
from complete_verifier.attack.search import attack_specification
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.model.double import run_double
from complete_verifier.model.replay import run_onnx
from complete_verifier.specification import Specification


def _answers(*outputs: float):
    """A replay that always gives `outputs`."""
    return lambda path, x: np.float32(outputs)


def _answers64(*outputs: float):
    """The same in float64."""
    return lambda path, x: np.float64(outputs)


def test_a_violation_is_confirmed_with_the_outputs_of_the_file(build, tmp_path) -> None:
    network = build.random_mlp([3, 8, 2], seed=0)
    path = network.save(tmp_path / "net.onnx")
    x = np.float32([0.25, -0.5, 0.75])
    y = network.forward(torch.from_numpy(x)[None])[0].numpy()
    region = build.region([-1.0] * 3, [1.0] * 3, ([[1.0, 0.0]], [float(y[0]) + 1e-3]))
    found = confirm(path, region, x, run_onnx)
    assert found is not None
    assert np.array_equal(found.inputs, x) and np.array_equal(found.outputs, run_onnx(path, x))
    assert found.outputs.dtype == np.float32 and found.num_rounded_inputs == 0


def test_what_the_file_does_not_confirm_is_no_counterexample(build, tmp_path) -> None:
    path = build.random_mlp([3, 8, 2], seed=0).save(tmp_path / "net.onnx")
    region = build.region([-1.0] * 3, [1.0] * 3, ([[1.0, 0.0]], [-100.0]))
    assert confirm(path, region, np.zeros(3, dtype=np.float32), run_onnx) is None


def test_a_candidate_outside_the_box_is_not_even_replayed(build) -> None:
    """Field case 6."""

    def replay(path, x):
        raise AssertionError("replayed")

    region = build.region([0.0082597], [0.0082603], ([[1.0]], [1.0]))
    assert confirm("net.onnx", region, np.float32([0.00832]), replay) is None


def test_the_boundary_counts_and_one_unit_in_the_last_place_beyond_does_not(build) -> None:
    """No tolerance: the clause is evaluated in exact arithmetic."""
    region = build.region([0.0], [1.0], ([[1.0, -1.0]], [0.0]))
    x, one = np.float32([0.5]), np.float32(1.0)
    beyond = np.nextafter(one, np.float32(2))
    assert confirm("net.onnx", region, x, _answers(1.0, 1.0)) is not None
    assert confirm("net.onnx", region, x, _answers(float(beyond), 1.0)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_outputs_that_are_not_finite_confirm_nothing(build, value) -> None:
    region = build.region([0.0], [1.0], ([[1.0]], [0.0]), ([[-1.0]], [0.0]))
    assert confirm("net.onnx", region, np.float32([0.5]), _answers(value)) is None


def test_precisions_that_disagree_confirm_nothing(build) -> None:
    """Field case 9: rows equal but for one unit in the last place."""
    region = build.region([0.0], [1.0], ([[1.0, -1.0]], [0.0]))
    x = np.float32([0.5])
    just_above = np.nextafter(1.0, 2.0)
    run_float32 = _answers(1.0, 1.0)

    def confirmed(*exact: float) -> bool:
        return confirm("net.onnx", region, x, run_float32, _answers64(*exact)) is not None

    assert not confirmed(just_above, 1.0)
    assert confirmed(1.0, just_above)


def test_a_clear_violation_needs_no_second_opinion(build) -> None:
    region = build.region([0.0], [1.0], ([[1.0, -1.0]], [0.0]))

    def never(path, x):
        raise AssertionError("asked")

    x = np.float32([0.5])
    assert confirm("net.onnx", region, x, _answers(1.0, 1.1), never) is not None
    with pytest.raises(AssertionError, match="asked"):
        confirm("net.onnx", region, x, _answers(1.0, 1.00001), never)


def test_a_network_that_cannot_be_run_in_float64_gives_no_second_opinion(build) -> None:
    region = build.region([0.0], [1.0], ([[1.0]], [0.0]))
    x = np.float32([0.5])
    assert confirm("net.onnx", region, x, _answers(0.0), lambda path, x: None) is not None


def test_what_float32_makes_equal_is_told_apart_in_float64(build, tmp_path) -> None:
    """Field case 9 with a file: 1 + x / 2**30 - 1 is zero in float32, and above it in float64."""
    layers = (([[2.0**-30]], [1.0]), ([[1.0]], [-1.0]))
    path = build.mlp(*layers).save(tmp_path / "net.onnx")
    x = np.float32([0.5])
    at_most_zero = build.region([0.0], [1.0], ([[1.0]], [0.0]))
    assert confirm(path, at_most_zero, x, run_onnx) is not None
    assert confirm(path, at_most_zero, x, run_onnx, run_double) is None
    at_least_zero = build.region([0.0], [1.0], ([[-1.0]], [0.0]))
    assert confirm(path, at_least_zero, x, run_onnx, run_double) is not None
    np.testing.assert_array_equal(run_double(path, x.astype(np.float64)), [2.0**-31])


def test_inputs_fixed_to_decimals_are_counted(build) -> None:
    region = build.region([0.1, 0.5, 0.3], [0.1, 0.5, 0.4], ([[1.0]], [0.0]))
    found = confirm("net.onnx", region, np.float32([0.1, 0.5, 0.35]), _answers(-1.0))
    assert found is not None and found.num_rounded_inputs == 1


def test_the_region_that_is_violated_is_named(build, tmp_path) -> None:
    path = build.mlp(([[1.0]], [0.0])).save(tmp_path / "net.onnx")
    regions = tuple(build.region([low], [low + 1], ([[-1.0]], [-2.5])) for low in (0.0, 1.0, 2.0))
    specification = Specification(regions, "test", 1, 1)
    result = attack_specification(
        lambda x: x,
        specification,
        AttackSettings(steps=5),
        seed=0,
        confirm=lambda region, x: confirm(path, region, x, run_onnx),
    )
    assert result.region_index == 2
    assert result.counterexample is not None and result.counterexample.inputs[0] >= 2.5
    assert result.best_margin <= 0 and not result.out_of_time


def test_a_specification_that_only_torch_violates_yields_none(build, tmp_path) -> None:
    """The network attacked and the file disagree; the file decides."""
    path = build.mlp(([[1.0]], [100.0])).save(tmp_path / "net.onnx")
    specification = Specification(
        (build.region([0.0], [1.0], ([[1.0]], [0.5])),), "test", num_inputs=1, num_outputs=1
    )
    result = attack_specification(
        lambda x: x,
        specification,
        AttackSettings(steps=5),
        seed=0,
        confirm=lambda region, x: confirm(path, region, x, run_onnx),
    )
    assert result.counterexample is None and result.region_index is None
    assert result.best_margin == -0.5
