"""Problems users of verifiers met with branch and bound, asked of the whole program.

A failure here is a verdict that depends on luck or memory, a limit that is not kept, or a run that
does not come back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact_minimum import minimum
from torch.utils._python_dispatch import TorchDispatchMode

from complete_verifier import instance
from tests.regression.conftest import Verify
from tests.regression.user_runs import ROOT, Run, decimal, save_mlp, vnnlib

# Later flags replace those of `verify`, which does not branch.
BRANCH = ("--complete_verifier", "bab", "--pgd_order", "skip", "--timeout", "60")
INPUTS = (*BRANCH, "--enable_input_split", "--branching_method", "sb")
ACTIVATIONS = (*BRANCH, "--branching_method", "kfsb", "--iteration", "10")
WAYS = {"activations": ACTIVATIONS, "inputs": INPUTS}

Layers = list[tuple[np.ndarray, np.ndarray]]


def layers_of(sizes: tuple[int, ...], seed: int) -> Layers:
    """Random layers in float32's numbers."""
    rng = np.random.default_rng(seed)
    pairs = zip(sizes, sizes[1:], strict=False)
    return [
        (
            (rng.normal(size=(out, into)) * 1.5 / np.sqrt(into)).astype(np.float32).astype(float),
            (0.3 * rng.normal(size=out)).astype(np.float32).astype(float),
        )
        for into, out in pairs
    ]


def property_beside(layers: Layers, gap: float) -> str:
    """Y_0 - Y_1 <= its exact minimum over [-1, 1]^n, minus `gap`: holds for gap < 0."""
    size = layers[0][0].shape[1]
    low, high = -np.ones(size), np.ones(size)
    truth = minimum(layers, np.array([1.0, -1.0]), low, high)
    limit = np.format_float_positional(truth + gap, trim="0")
    return vnnlib(low.tolist(), high.tolist(), 2, f"(<= (- Y_0 Y_1) {limit})")


Problem = tuple[Path, str]


@pytest.fixture
def problem(tmp_path: Path) -> Callable[..., Problem]:
    """`problem(sizes, gap, seed)`: a network's file and a property that gap > 0 violates."""

    def make(sizes: tuple[int, ...], gap: float, seed: int = 0) -> Problem:
        layers = layers_of(sizes, seed)
        return save_mlp(tmp_path / "net.onnx", *layers), property_beside(layers, gap)

    return make


def reason(run: Run) -> str:
    return str(run.records[0]["reason"])


def counters(run: Run) -> dict[str, Any]:
    return dict(run.records[0]["bab"])


# -- 4: out of memory --------------------------------------------------------------------------


class _Exhausted(TorchDispatchMode):
    """Fails the k-th tensor operation as an allocator does; counts them all."""

    def __init__(self, fails_at: int | None) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.done = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.done += 1
        if self.done == self.fails_at:
            raise torch.OutOfMemoryError("planted: not enough memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("gap", [-0.05, 0.05])
@pytest.mark.parametrize("way", WAYS)
def test_running_out_of_memory_anywhere_never_flips_the_verdict(
    verify: Verify,
    problem: Callable[..., Problem],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    gap: float,
) -> None:
    """Field case 4: at the k-th allocation of the work on an instance, for k spread over it."""
    onnx, text = problem((3, 6, 4, 2), gap)
    work = instance.InstanceRun.run
    modes: list[_Exhausted] = []

    def limited(own: instance.InstanceRun) -> Any:
        with modes[-1]:
            return work(own)

    monkeypatch.setattr(instance.InstanceRun, "run", limited)

    def run_with(fails_at: int | None) -> Run:
        modes.append(_Exhausted(fails_at))
        return verify(onnx, text, *WAYS[way], "--iteration", "3", "--init_iteration", "3")

    right = "unsat" if gap < 0 else "sat"
    assert run_with(None).verdict == right
    total = modes[-1].done
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 0.97):
        run = run_with(1 + int(share * total))
        assert run.verdict in (right, "unknown", "error")
        if run.verdict == "error":
            assert run.code == 1 and "memory" in reason(run)
    assert verify(onnx, text, *WAYS[way]).verdict == right  # nothing of it stays behind


# -- 31: subproblems that are done or empty ----------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_a_batch_may_hold_boxes_that_are_proven_or_points(
    verify: Verify, problem: Callable[..., Problem], batch: int
) -> None:
    """Field case 31: most halves are proven at once, one input is fixed, one clause is closed."""
    onnx, text = problem((3, 10, 8, 2), -0.02)
    fixed = text.replace("(>= X_2 -1.0)", "(>= X_2 0.25)").replace("(<= X_2 1.0)", "(<= X_2 0.25)")
    assert fixed.count("0.25") == 2
    closed = fixed.replace("(assert (<= (- Y_0", "(assert (or (<= Y_0 -1000.0) (<= (- Y_0")
    closed = closed.rstrip()[:-1] + "))\n"
    run = verify(onnx, closed, *INPUTS, "--batch_size", batch)
    assert run.verdict == "unsat"
    empty = fixed.replace("(>= X_2 0.25)", "(>= X_2 0.5)")
    assert verify(onnx, empty, *INPUTS, "--batch_size", batch).verdict == "unsat"


def test_a_region_without_points_beside_one_with_points(
    verify: Verify, problem: Callable[..., Problem]
) -> None:
    """Field case 31: of two boxes one is empty; the other is decided."""
    onnx, text = problem((2, 8, 6, 2), 0.02)
    head, _, last = text.rstrip().rpartition("\n")
    unsafe = last.removeprefix("(assert ").removesuffix(")")
    nowhere = f"(and (>= X_0 0.5) (<= X_0 0.25) {unsafe})"
    for where, verdict in ((f"(and (>= X_0 -1.0) {unsafe})", "sat"), (nowhere, "unsat")):
        both = f"{head}\n(assert (or {nowhere} {where}))\n"
        assert verify(onnx, both, *INPUTS).verdict == verdict


def test_a_box_that_cannot_be_split_is_tried_however_late_attacks_start(
    verify: Verify, tmp_path: Path
) -> None:
    """A point is violated or not; nothing is left that a later attack could look at."""
    onnx = save_mlp(tmp_path / "net.onnx", (np.eye(2), np.zeros(2)), (np.eye(2), np.zeros(2)))
    text = vnnlib([0.5, 0.5], [0.5, 0.5], 2, "(<= Y_0 0.5)")
    late = ("--input_split_adv_check", "20")
    assert verify(onnx, text, *INPUTS, *late).verdict == "sat"


# -- output ------------------------------------------------------------------------------------


def test_the_linear_solver_stays_silent(tmp_path: Path) -> None:
    """A process of its own: the solver introduces itself once per process, from C."""
    onnx = save_mlp(tmp_path / "net.onnx", ([[1.0]], [0.0]), ([[1.0]], [0.0]))
    # No bound of one row excludes this, so it takes a leaf.
    text = vnnlib([-1], [1], 1, "(and (<= Y_0 0.25) (>= Y_0 0.5))")
    (tmp_path / "property.vnnlib").write_text(text)
    program = (
        "import sys\n"
        "from complete_verifier.bab import activation, leaf\n"
        "from complete_verifier.abcrown import main\n"
        "def decide(*arguments):\n"
        "    print('a leaf was decided')\n"
        "    return leaf.decide_leaf(*arguments)\n"
        "activation.decide_leaf = decide\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    files = ("--onnx_path", onnx, "--vnnlib_path", "property.vnnlib", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, files), *ACTIVATIONS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a leaf was decided" in done.stdout
    assert "HiGHS" not in done.stdout


# -- 33: limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_queue_that_explodes_ends_as_unknown_with_what_was_found(
    verify: Verify, problem: Callable[..., Problem], way: str
) -> None:
    """Field case 33, `max_domains`."""
    onnx, text = problem((4, 12, 12, 2), -1e-4)
    few = ("--max_domains", "10", "--batch_size", "8", "--iteration", "1")
    run = verify(onnx, text, *WAYS[way], *few)
    assert (run.verdict, run.code) == ("unknown", 0)
    assert "more than 10 open" in reason(run)
    found = counters(run)
    assert found["domains_left"] > 10 and found["domains_visited"] > 0 and found["rounds"] > 0
    assert np.isfinite(found["lower_bound"]) and found["lower_bound"] < 0
    assert len(run.records[0]["bounds"]["crown"]) == 1


@pytest.mark.parametrize("way", WAYS)
def test_the_number_of_rounds_is_kept(
    verify: Verify, problem: Callable[..., Problem], way: str
) -> None:
    onnx, text = problem((4, 12, 12, 2), -1e-4)
    few = ("--max_iterations", "3", "--batch_size", "4", "--iteration", "1")
    run = verify(onnx, text, *WAYS[way], *few)
    assert run.verdict == "unknown" and "3 rounds were allowed" in reason(run)
    assert counters(run)["rounds"] == 3


# -- 36, 37: several instances -----------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_an_instance_that_breaks_while_branching_spoils_no_other(
    program: Callable[..., Run],
    problem: Callable[..., Problem],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Field case 36: `error` for that one, the rest still run, exit code 1."""
    _, text = problem((3, 8, 6, 2), -0.05)
    for number in range(3):
        (tmp_path / f"{number}.vnnlib").write_text(text)
    lines = "".join(f"net.onnx,{number}.vnnlib,60\n" for number in range(3))
    (tmp_path / "instances.csv").write_text(lines)
    branch = instance.InstanceRun._branch_region
    calls: list[int] = []

    def breaks_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("planted")
        return branch(*arguments)

    monkeypatch.setattr(instance.InstanceRun, "_branch_region", breaks_once)
    files = ("--csv_name", "instances.csv", "--result_json", "out.json")
    run = program(*files, *WAYS[way], "--init_iteration", "3")
    assert (run.verdicts, run.code) == (["unsat", "error", "unsat"], 1)
    assert len(calls) == 3 and "planted" in run.records[1]["reason"]


@pytest.mark.parametrize("gap", [-0.01, 0.01])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_query_many_times_takes_the_same_subproblems(
    verify: Verify, problem: Callable[..., Problem], way: str, gap: float
) -> None:
    """Field case 37, each time with everything read anew."""
    onnx, text = problem((3, 8, 6, 2), gap)
    # Random from the very top takes thousands of subproblems; the best few at once go first here.
    random = ("--branching_method", "random", "--min_batch_size_ratio", "2")
    own = random if way == "activations" else ()
    runs = [verify(onnx, text, *WAYS[way], *own, "--batch_size", "8") for _ in range(3)]
    assert {run.verdict for run in runs} == {"unsat" if gap < 0 else "sat"}
    assert len({str(counters(run)) for run in runs}) == 1
    assert gap > 0 or counters(runs[0])["domains_visited"] > 0


@pytest.mark.parametrize("violated", [None, 0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_property_of_several_boxes(
    verify: Verify, tmp_path: Path, way: str, violated: int | None
) -> None:
    """Each box has an inequality of its own, and one of them at most holds somewhere in it."""
    layers = layers_of((2, 10, 8, 2), 1)
    functional = np.array([1.0, -1.0])
    alternatives = []
    for place, sign in enumerate((1.0, -1.0, 1.0)):
        low = np.array([2.0 * place, -1.0])
        truth = minimum(layers, sign * functional, low, low + 2.0)
        limit = truth + (0.05 if place == violated else -0.05)
        row = "(- Y_0 Y_1)" if sign > 0 else "(- Y_1 Y_0)"
        limits = "".join(
            f" (>= X_{i} {decimal(low[i])}) (<= X_{i} {decimal(low[i] + 2.0)})" for i in range(2)
        )
        alternatives.append(f"(and{limits} (<= {row} {decimal(limit)}))")
    text = vnnlib([-1.0, -1.0], [7.0, 7.0], 2, f"(or {' '.join(alternatives)})")
    run = verify(save_mlp(tmp_path / "net.onnx", *layers), text, *WAYS[way])
    assert run.verdict == ("unsat" if violated is None else "sat")
    assert violated is not None or counters(run)["domains_visited"] > 0


def test_the_same_query_many_times_in_one_batch(
    program: Callable[..., Run], problem: Callable[..., Problem], tmp_path: Path
) -> None:
    """Field case 37, with the network kept from one instance to the next."""
    _, text = problem((3, 10, 8, 2), -0.01)
    (tmp_path / "property.vnnlib").write_text(text)
    (tmp_path / "instances.csv").write_text("net.onnx,property.vnnlib,60\n" * 5)
    files = ("--csv_name", "instances.csv", "--result_json", "out.json")
    run = program(*files, *ACTIVATIONS, "--init_iteration", "3", "--batch_size", "8")
    assert run.verdicts == ["unsat"] * 5
    visited = {record["bab"]["domains_visited"] for record in run.records}
    assert len(visited) == 1 and visited.pop() > 0
