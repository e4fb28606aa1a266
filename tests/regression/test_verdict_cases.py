"""Problems users of verifiers met, asked of the whole program: is the verdict right?

A failure here is a wrong answer or a refusal to answer. A proof is checked against what the
network really does; "never unsat" means that the property is violated by construction.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from complete_verifier.attack.save import read_counterexample
from complete_verifier.model.onnx_session import OnnxSession
from tests.regression.conftest import Verify
from tests.regression.user_runs import random_mlp, save_mlp, save_network, vnnlib

UNDECIDED = {"unknown", "timeout", "error"}
NO_ATTACK = ("--pgd_order", "skip")


def identity(path: Path, size: int) -> Path:
    return save_mlp(path, (np.eye(size), np.zeros(size)))


def residual(path: Path, seed: int) -> Path:
    """x -> A relu(B x + b) + C relu(D x + d) + x, with 4 inputs and 4 outputs."""
    rng = np.random.default_rng(seed)
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "b", "bb"], ["h1"], transB=1),
        node("Relu", ["h1"], ["r1"]),
        node("Gemm", ["x", "d", "db"], ["h2"], transB=1),
        node("Relu", ["h2"], ["r2"]),
        node("Gemm", ["r1", "a", "ab"], ["p1"], transB=1),
        node("Gemm", ["r2", "c", "cb"], ["p2"], transB=1),
        node("Add", ["p1", "p2"], ["s"]),
        node("Add", ["s", "x"], ["y"]),
    ]
    constants = {name: rng.normal(size=(4, 4)) for name in "abcd"}
    constants |= {name: rng.normal(size=4) for name in ("bb", "db", "ab", "cb")}
    return save_network(path, nodes, constants, (1, 4))


# -- 1: a planted violation --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_violation_is_never_proven_away(
    verify: Verify, tmp_path: Path, seed: int
) -> None:
    onnx = residual(tmp_path / "net.onnx", seed)
    points = np.random.default_rng(9).uniform(-1, 1, size=(2000, 4)).astype(np.float32)
    scores = OnnxSession(onnx).run(points)[:, 0]
    text = vnnlib([-1] * 4, [1] * 4, 4, f"(<= Y_0 {np.quantile(scores, 0.2):.6f})")
    assert verify(onnx, text, *NO_ATTACK).verdict == "unknown"
    assert verify(onnx, text).verdict == "sat"


# -- 2: huge boxes -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown", "alpha-crown"])
@pytest.mark.parametrize("size", [1e6, 1e20, 3e38])
@pytest.mark.parametrize("operator", ["Relu", "Sigmoid", "Tanh"])
def test_a_huge_box_proves_nothing_false(
    verify: Verify, tmp_path: Path, method: str, size: float, operator: str
) -> None:
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        helper.make_node(operator, ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["y"], transB=1),
    ]
    constants = {"w0": rng.normal(size=(6, 3)), "b0": rng.normal(size=6)}
    constants |= {"w1": rng.normal(size=(2, 6)), "b1": np.zeros(2)}
    onnx = save_network(tmp_path / "net.onnx", nodes, constants, (1, 3))
    at_zero = OnnxSession(onnx).run(np.zeros((1, 3), dtype=np.float32))[0, 0]
    text = vnnlib([-size] * 3, [size] * 3, 2, f"(<= Y_0 {at_zero + 0.1:.6f})")
    run = verify(onnx, text, "--bound_prop_method", method, *NO_ATTACK)
    assert run.verdict in UNDECIDED


def test_a_box_beyond_float32_is_no_proof(verify: Verify, tmp_path: Path) -> None:
    onnx = identity(tmp_path / "net.onnx", 1)
    run = verify(onnx, vnnlib([-1e60], [1e60], 1, "(<= Y_0 0.0)"))
    assert run.verdict in {"sat", *UNDECIDED}


# -- 3, 13, 15: disjunctions -------------------------------------------------------------------

POSSIBLE, IMPOSSIBLE = "(<= Y_0 0.5)", "(<= Y_1 -0.5)"  # y = x in [0, 1]
TWICE = "(and (<= Y_0 0.5) (>= Y_0 0.75))"  # impossible, though each half is not


@pytest.mark.parametrize("order", list(itertools.permutations([POSSIBLE, IMPOSSIBLE, TWICE])))
def test_one_satisfiable_disjunct_violates_in_any_order(
    verify: Verify, tmp_path: Path, order: tuple[str, ...]
) -> None:
    onnx = identity(tmp_path / "net.onnx", 2)
    text = vnnlib([0, 0], [1, 1], 2, f"(or {' '.join(f'(and {each})' for each in order)})")
    assert verify(onnx, text).verdict == "sat"


def test_impossible_disjuncts_alone_are_proven(verify: Verify, tmp_path: Path) -> None:
    onnx = identity(tmp_path / "net.onnx", 2)
    text = vnnlib([0, 0], [1, 1], 2, f"(or (and {IMPOSSIBLE}) (and (>= Y_0 1.5)))")
    assert verify(onnx, text).verdict == "unsat"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_undecided_disjunct_keeps_the_whole_unknown(
    verify: Verify, tmp_path: Path, order: tuple[int, int]
) -> None:
    onnx = identity(tmp_path / "net.onnx", 2)
    parts = [f"(and {IMPOSSIBLE})", TWICE]
    text = vnnlib([0, 0], [1, 1], 2, f"(or {' '.join(parts[i] for i in order)})")
    assert verify(onnx, text).verdict == "unknown"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_asserts_hold_together_in_any_order(
    verify: Verify, tmp_path: Path, order: tuple[int, int]
) -> None:
    onnx = identity(tmp_path / "net.onnx", 2)
    parts = ["(or (<= Y_0 0.2) (>= Y_0 0.8))", "(<= Y_1 -1.0)"]
    assert verify(onnx, vnnlib([0, 0], [1, 1], 2, *(parts[i] for i in order))).verdict == "unsat"
    parts[1] = "(<= Y_1 0.1)"
    assert verify(onnx, vnnlib([0, 0], [1, 1], 2, *(parts[i] for i in order))).verdict == "sat"


def test_disjuncts_that_narrow_different_inputs_do_not_leak(verify: Verify, tmp_path: Path) -> None:
    onnx = identity(tmp_path / "net.onnx", 2)
    first = "(and (<= X_0 0.1) (>= Y_0 0.5))"  # impossible where X_0 is narrowed
    second = "(and (<= X_1 0.1) (>= Y_0 0.9))"  # possible: X_0 has its whole range here
    for parts in ((first, second), (second, first)):
        text = vnnlib([0, 0], [1, 1], 2, f"(or {' '.join(parts)})")
        assert verify(onnx, text).verdict == "sat"
    assert verify(onnx, vnnlib([0, 0], [1, 1], 2, f"(or {first})")).verdict == "unsat"


# -- 5: overflow -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ibp", "crown", "alpha-crown"])
def test_inf_minus_inf_is_no_proof(verify: Verify, tmp_path: Path, method: str) -> None:
    # Zero on the inputs used to check the loading, far beyond float32 in the box.
    first = (np.full((2, 1), 1.0), np.full(2, -1000.0))
    second = (np.full((2, 2), 1e20), np.zeros(2))
    third = (np.array([[1e20, -1e20]]), np.zeros(1))
    onnx = save_mlp(tmp_path / "net.onnx", first, second, third)
    text = vnnlib([999], [1001], 1, "(<= Y_0 -1.0)")
    assert verify(onnx, text, "--bound_prop_method", method).verdict in UNDECIDED


# -- 6, 7, 14: narrow boxes --------------------------------------------------------------------


def test_a_point_just_outside_a_narrow_box_is_no_counterexample(
    verify: Verify, tmp_path: Path
) -> None:
    onnx = identity(tmp_path / "net.onnx", 1)
    text = vnnlib([0.0082597], [0.0082603], 1, "(>= Y_0 0.00832)")
    assert verify(onnx, text).verdict == "unsat"


@pytest.mark.parametrize("width", [1e-6, 1e-5, 1e-4])
def test_a_tiny_width_that_matters_is_searched(
    verify: Verify, tmp_path: Path, width: float
) -> None:
    onnx = save_mlp(tmp_path / "net.onnx", ([[1e6, 1.0]], [-5e5]))
    text = vnnlib([0.5, 0.0], [0.5 + width, 1.0], 1, f"(>= Y_0 {1e6 * width + 0.5})")
    run = verify(onnx, text)
    assert run.verdict == "sat"
    found = read_counterexample(tmp_path / "test_cex.txt")
    assert 0.5 <= float(found.inputs[0]) <= 0.5 + width


def test_an_open_side_is_not_searched(verify: Verify, tmp_path: Path) -> None:
    onnx = identity(tmp_path / "net.onnx", 1)
    text = vnnlib([-1.0], [0.5], 1, "(> X_0 0.25)", "(<= Y_0 0.25)")
    assert verify(onnx, text).verdict in {"unsat", "unknown"}
    text = vnnlib([-1.0], [0.5], 1, "(>= X_0 0.25)", "(<= Y_0 0.25)")
    assert verify(onnx, text).verdict == "sat"


# -- 9: float32 cannot tell -------------------------------------------------------------------


def test_outputs_that_only_rounding_makes_equal_are_no_counterexample(
    verify: Verify, tmp_path: Path
) -> None:
    """1 + x / 2**30 - 1 is zero in float32 and above it in float64, for x in [0.25, 0.75]."""
    onnx = save_mlp(tmp_path / "net.onnx", ([[2.0**-30]], [1.0]), ([[1.0]], [-1.0]))
    bounds_off = "--no_incomplete"
    unsafe = vnnlib([0.25], [0.75], 1, "(<= Y_0 0.0)")
    assert verify(onnx, unsafe, bounds_off).verdict == "unknown"
    assert verify(onnx, unsafe).verdict == "unsat"
    unsafe = vnnlib([0.25], [0.75], 1, "(>= Y_0 0.0)")
    assert verify(onnx, unsafe, bounds_off).verdict == "sat"


# -- 10, 11: the boundary ----------------------------------------------------------------------


def test_an_output_of_exactly_the_threshold_violates(verify: Verify, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hidden = [(rng.normal(size=(6, n)), rng.normal(size=6)) for n in (1, 6)]

    def ending_in_minus_relu(bias: float) -> Path:
        last = (rng.normal(size=(1, 6)), [bias])
        return save_mlp(tmp_path / "net.onnx", *hidden, last, ([[-1.0]], [0.0]))

    text = vnnlib([-1], [1], 1, "(>= Y_0 0.0)")
    assert verify(ending_in_minus_relu(-100.0), text).verdict == "sat"
    assert verify(ending_in_minus_relu(100.0), text).verdict == "unsat"


def test_the_middle_of_the_output_range_is_found(verify: Verify, tmp_path: Path) -> None:
    onnx = save_mlp(tmp_path / "net.onnx", ([[1, 1]], [0]), ([[1.0]], [-0.5]))
    assert verify(onnx, vnnlib([0, 0], [0.5, 0.5], 1, "(>= Y_0 0.0)")).verdict == "sat"


# -- 12: scaling -------------------------------------------------------------------------------


@pytest.mark.parametrize(("quantile", "verdict"), [(0.05, "sat"), (None, "unsat")])
def test_scaling_outputs_and_thresholds_keeps_the_verdict(
    verify: Verify, tmp_path: Path, quantile: float | None, verdict: str
) -> None:
    sizes = (3, 8, 1)
    points = np.random.default_rng(5).uniform(-1, 1, size=(2000, 3)).astype(np.float32)
    scores = OnnxSession(random_mlp(tmp_path / "probe.onnx", sizes)).run(points)
    threshold = float(scores.min() - 6 if quantile is None else np.quantile(scores, quantile))
    for scale in (1.0, 1e4):
        onnx = random_mlp(tmp_path / "net.onnx", sizes, scale=scale)
        text = vnnlib([-1] * 3, [1] * 3, 1, f"(<= Y_0 {scale * threshold:.6f})")
        assert verify(onnx, text).verdict == verdict


def test_scaling_keeps_unknown_unknown(verify: Verify, tmp_path: Path) -> None:
    sizes = (3, 8, 1)
    points = np.random.default_rng(5).uniform(-1, 1, size=(20000, 3)).astype(np.float32)
    scores = OnnxSession(random_mlp(tmp_path / "probe.onnx", sizes)).run(points)
    for scale in (1.0, 1e4):
        onnx = random_mlp(tmp_path / "net.onnx", sizes, scale=scale)
        threshold = scale * (float(scores.min()) - 0.05)
        text = vnnlib([-1] * 3, [1] * 3, 1, f"(<= Y_0 {threshold:.6f})")
        assert verify(onnx, text, "--bound_prop_method", "ibp").verdict == "unknown"


# -- 16, 19, 27: degenerate sets ---------------------------------------------------------------


def test_a_tautology_is_violated_at_once(verify: Verify, tmp_path: Path) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (3, 8, 1))
    run = verify(onnx, vnnlib([-1] * 3, [1] * 3, 1, "(or (and (<= Y_0 0)) (and (>= Y_0 0)))"))
    assert run.verdict == "sat"
    assert run.records[0]["bounds"] == {"crown": [], "alpha_crown": []}


@pytest.mark.parametrize("order", ["before", "after", "skip"])
def test_an_empty_input_set_is_unsat_with_a_warning(
    verify: Verify, tmp_path: Path, order: str
) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (3, 8, 1))
    run = verify(onnx, vnnlib([1, 0, 0], [-1, 1, 1], 1, "(<= Y_0 100.0)"), "--pgd_order", order)
    assert run.verdict == "unsat"
    assert "empty" in run.stderr


@pytest.mark.parametrize("method", ["ibp", "crown-ibp", "crown", "alpha-crown"])
def test_a_point_box_is_a_forward_pass(verify: Verify, tmp_path: Path, method: str) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (3, 8, 8, 2))
    point = np.array([0.25, -0.5, 0.125], dtype=np.float32)  # exact in decimals
    score = float(OnnxSession(onnx).run(point[None])[0, 0])
    flags = ("--bound_prop_method", method, *NO_ATTACK)
    text = vnnlib(point, point, 2, f"(<= Y_0 {score - 1e-3:.8f})")
    run = verify(onnx, text, *flags)
    assert run.verdict == "unsat"
    assert run.records[0]["bounds"]["crown"] == pytest.approx([1e-3], abs=2e-6)
    text = vnnlib(point, point, 2, f"(<= Y_0 {score + 1e-3:.8f})")
    assert verify(onnx, text, *flags).verdict == "unknown"
    assert verify(onnx, text).verdict == "sat"


@pytest.mark.parametrize("fixed", [(0,), (0, 1), (2,)])
def test_some_fixed_inputs_are_ordinary(
    verify: Verify, tmp_path: Path, fixed: tuple[int, ...]
) -> None:
    onnx = random_mlp(tmp_path / "net.onnx", (3, 8, 8, 2))
    lower = np.full(3, -1.0)
    lower[list(fixed)] = 1.0
    points = np.random.default_rng(1).uniform(lower, 1.0, size=(500, 3)).astype(np.float32)
    least = float(OnnxSession(onnx).run(points)[:, 0].min())
    run = verify(onnx, vnnlib(lower, [1] * 3, 2, "(<= Y_0 0.0)"), *NO_ATTACK)
    assert max(run.records[0]["bounds"]["crown"]) <= least + 1e-5
    assert verify(onnx, vnnlib(lower, [1] * 3, 2, "(<= Y_0 -30.0)")).verdict == "unsat"
