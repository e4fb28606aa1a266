"""The bounds that runs report: sound, ordered by method, and the same whatever the storage mode.

A failure means that an option that must only change speed or memory changes a bound, or that a
stronger method reports a weaker one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from complete_verifier.model.onnx_session import OnnxSession
from tests.regression.conftest import Verify
from tests.regression.user_runs import Run, random_mlp, save_network, vnnlib

NO_ATTACK = ("--pgd_order", "skip")
METHODS = ("ibp", "crown-ibp", "crown", "alpha-crown")
SLACK = 1e-5  # relative rounding of float32 sums of a few dozen terms


def margins(run: Run, kind: str = "crown") -> np.ndarray:
    (record,) = run.records
    return np.array([float(value) for value in record["bounds"][kind]])


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(
        np.all(np.abs(one - other) <= SLACK * np.maximum(1, np.abs(other)))
    )


def every_output_at_most(threshold: float, num_outputs: int) -> str:
    """Its margins are the lower bounds of the outputs, less the threshold."""
    rows = [f"(and (<= Y_{i} {threshold}))" for i in range(num_outputs)]
    return f"(or {' '.join(rows)})"


def sampled_minimum(onnx: Path, lower: Any, upper: Any, count: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(2)
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    inside = rng.uniform(low, high, size=(count, low.size))
    corners = np.where(rng.random((count, low.size)) < 0.5, low, high)
    points = np.concatenate([inside, corners]).astype(np.float32)
    return OnnxSession(onnx).run(points).min(axis=0)


# -- methods -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_stronger_methods_report_larger_margins(verify: Verify, tmp_path: Path, seed: int) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (4, 10, 10, 3), seed=seed)
    box = [-0.4] * 4, [0.4] * 4
    text = vnnlib(*box, 3, every_output_at_most(5.0, 3))
    runs = {m: verify(onnx, text, "--bound_prop_method", m, *NO_ATTACK) for m in METHODS}
    found = {method: margins(run) for method, run in runs.items()}
    best = margins(runs["alpha-crown"], "alpha_crown")
    truth = sampled_minimum(onnx, *box) - 5
    assert (found["ibp"] <= truth + SLACK).all()  # CROWN need not beat it row by row
    assert (found["crown-ibp"] <= found["crown"] + SLACK).all()
    assert (found["crown"] == found["alpha-crown"]).all()
    assert (found["crown"] <= best).all() and best.sum() > found["crown"].sum() + 1e-3
    assert (best <= truth + SLACK).all()


def test_what_a_method_proves_every_stronger_one_proves(verify: Verify, tmp_path: Path) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (4, 10, 10, 3), seed=1)
    text = vnnlib([-0.05] * 4, [0.05] * 4, 3, "(<= Y_0 0.0)")
    lowest = {
        method: float(margins(verify(onnx, text, "--bound_prop_method", method, *NO_ATTACK))[0])
        for method in METHODS[:3]
    }
    assert lowest["ibp"] < lowest["crown-ibp"] < lowest["crown"]
    for number, weakest in enumerate(METHODS[:3]):
        provable = vnnlib([-0.05] * 4, [0.05] * 4, 3, f"(<= Y_0 {lowest[weakest] - 1e-5:.7f})")
        verdicts = [
            verify(onnx, provable, "--bound_prop_method", method, *NO_ATTACK).verdict
            for method in METHODS
        ]
        assert verdicts == ["unknown"] * number + ["unsat"] * (4 - number)


# -- 20: patches and matrix --------------------------------------------------------------------


def test_conv_mode_does_not_change_bounds(verify: Verify, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    node = helper.make_node
    nodes = [
        node("Flatten", ["x"], ["flat"]),
        node("Gemm", ["flat", "w1", "b1"], ["one"], transB=1),
        node("Gemm", ["flat", "w2", "b2"], ["two"], transB=1),
        node("Add", ["one", "two"], ["sum"]),
        node("Relu", ["sum"], ["r"]),
        node("Gemm", ["r", "w3", "b3"], ["y"], transB=1),
    ]
    constants = {name: 0.05 * rng.normal(size=(20, 784)) for name in ("w1", "w2")}
    constants |= {"w3": rng.normal(size=(3, 20)), "b1": np.ones(20), "b2": np.zeros(20)}
    constants |= {"b3": np.zeros(3)}
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, (1, 1, 28, 28))
    text = vnnlib([0.4] * 784, [0.42] * 784, 3, every_output_at_most(0.0, 3))
    runs = [verify(onnx, text, "--conv_mode", mode, *NO_ATTACK) for mode in ("patches", "matrix")]
    for kind in ("crown", "alpha_crown"):
        assert close(margins(runs[0], kind), margins(runs[1], kind))
        assert np.isfinite(margins(runs[0], kind)).all()


# -- 25, 32: operators ---------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("center", [(0.5, 0.5), (0.0, 0.0), (-0.3, 0.8)])
def test_a_product_of_inputs_is_bounded_soundly(
    verify: Verify, tmp_path: Path, method: str, center: tuple[float, float]
) -> None:
    nodes = [
        helper.make_node("Gather", ["x", "first_shape"], ["a"], axis=1),
        helper.make_node("Gather", ["x", "second_shape"], ["b"], axis=1),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    constants = {"first_shape": [0], "second_shape": [1]}
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, (1, 2))
    lower, upper = np.array(center) - 0.1, np.array(center) + 0.1
    least = min(a * b for a in (lower[0], upper[0]) for b in (lower[1], upper[1]))
    run = verify(
        onnx, vnnlib(lower, upper, 1, "(<= Y_0 0.0)"), "--bound_prop_method", method, *NO_ATTACK
    )
    (margin,) = margins(run)
    assert least - 0.05 <= margin <= least + 1e-6


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("batch", [1, "batch"])
def test_batch_norm_after_relu_and_dropout(
    verify: Verify, tmp_path: Path, dims: int, batch: int | str
) -> None:
    rng = np.random.default_rng(6)
    node = helper.make_node
    constants = {
        "scale": rng.uniform(-2, 2, 4),
        "shift": rng.normal(size=4),
        "mean": rng.normal(size=4),
        "var": rng.uniform(0.1, 2, 4),
        "w0": rng.normal(size=(4, 3)),
        "b0": rng.normal(size=4),
        "w1": rng.normal(size=(2, 4)),
        "b1": np.zeros(2),
    }
    nodes = [node("Gemm", ["x", "w0", "b0"], ["h"], transB=1), node("Relu", ["h"], ["r"])]
    shape: tuple[int | str, ...] = (batch, 3)
    if dims == 2:
        shape = (batch, 3, 2, 2)
        constants["w0"] = rng.normal(size=(4, 3, 1, 1))
        constants["w1"] = rng.normal(size=(2, 16))
        nodes = [node("Conv", ["x", "w0", "b0"], ["h"]), node("Relu", ["h"], ["r"])]
    nodes += [
        node("BatchNormalization", ["r", "scale", "shift", "mean", "var"], ["n"]),
        node("Dropout", ["n"], ["d"]),
        node("Flatten", ["d"], ["f"]),
        node("Gemm", ["f", "w1", "b1"], ["y"], transB=1),
    ]
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, shape)
    size = 3 if dims == 1 else 12
    box = [-0.5] * size, [0.5] * size
    truth = sampled_minimum(onnx, *box)
    for method in METHODS:
        flags = ("--bound_prop_method", method, *NO_ATTACK)
        run = verify(onnx, vnnlib(*box, 2, every_output_at_most(0.0, 2)), *flags)
        assert (margins(run) <= truth + SLACK * np.maximum(1, np.abs(truth))).all()
    assert verify(onnx, vnnlib(*box, 2, f"(<= Y_0 {truth[0] + 0.01:.4f})")).verdict == "sat"


# -- 28: from no unstable neuron to all --------------------------------------------------------


def test_sparse_storage_never_changes_bounds_over_a_sweep(verify: Verify, tmp_path: Path) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (3, 6, 6, 2), seed=3)
    for epsilon in (0.0, 0.03, 0.1, 0.3, 1.0, 30.0):
        box = [0.1 - epsilon] * 3, [0.1 + epsilon] * 3
        text = vnnlib(*box, 2, every_output_at_most(100.0, 2))
        plain = verify(onnx, text, *NO_ATTACK)
        truth = sampled_minimum(onnx, *box) - 100
        for flags in (
            ("--no_sparse_alpha",),
            ("--no_sparse_interm",),
            ("--no_sparse_alpha", "--no_sparse_interm"),
        ):
            dense = verify(onnx, text, *flags, *NO_ATTACK)
            assert close(margins(dense), margins(plain)), (epsilon, flags)
            best = margins(dense, "alpha_crown")
            assert (margins(dense) <= best + SLACK).all()
            assert (best <= truth + SLACK * np.abs(truth)).all(), (epsilon, flags)
            assert close(best, margins(plain, "alpha_crown")), (epsilon, flags)


# -- 34: chunks --------------------------------------------------------------------------------


def test_bounds_do_not_depend_on_the_chunk(verify: Verify, tmp_path: Path) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (4, 40, 40, 5), seed=8)
    text = vnnlib([-0.3] * 4, [0.3] * 4, 5, every_output_at_most(0.0, 5))
    whole = verify(onnx, text, *NO_ATTACK)
    for rows in (1, 7):
        cut = verify(onnx, text, "--crown_batch_size", rows, *NO_ATTACK)
        assert close(margins(cut), margins(whole))
        assert close(margins(cut, "alpha_crown"), margins(whole, "alpha_crown"))
    tiles = [
        verify(onnx, text, "--deterministic", "--crown_batch_size", rows, *NO_ATTACK)
        for rows in (1, 1000)
    ]
    assert tiles[0].records[0]["bounds"] == tiles[1].records[0]["bounds"]
