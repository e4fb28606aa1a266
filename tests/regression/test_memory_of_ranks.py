"""Field case 4 on three ranks: one of them finds no memory, at every phase of an instance.

A failure is a verdict that memory flips, ranks that part and hang, or a batch that does not go on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.regression.test_branching_cases import layers_of, property_beside
from tests.regression.test_torchrun import torchrun
from tests.regression.user_runs import ROOT, save_mlp

pytestmark = pytest.mark.distributed

# Rank 1 counts the large results of the first two instances, which are the ones that follow again
# and again; in each of those one finds no memory, further on from one to the next. Large: what a
# few numbers take is not what memory runs out for, and a rank that lacks it can tell nobody; nor
# can one that lacks it for subproblems on their way to another.
WRAPPER = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from complete_verifier import instance
from complete_verifier.abcrown import main

SHARES = {shares}
work, counts = instance.InstanceRun.{phase}, []

def on_its_way():
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith("exchange.py"):
        frame = frame.f_back
    return frame is not None

class Exhausted(TorchDispatchMode):
    def __init__(self, fails_at):
        super().__init__()
        self.fails_at, self.done = fails_at, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {{}}))
        is_large = isinstance(result, torch.Tensor) and result.numel() >= {large}
        is_large = is_large and not on_its_way()
        self.done += is_large
        if is_large and self.done == self.fails_at:
            print("planted at", self.done, flush=True, file=sys.stderr)
            raise torch.OutOfMemoryError("planted: not enough memory")
        return result

def limited(own, *arguments):
    number, kind = divmod(len(counts), 2)
    fails_at = None if number == 0 else {first} + int(SHARES[number - 1] * counts[kind])
    with Exhausted(fails_at if os.environ["RANK"] == "1" else None) as mode:
        try:
            return work(own, *arguments)
        finally:
            counts.append(mode.done)

instance.InstanceRun.{phase} = limited
raise SystemExit(main())
"""
LARGE = 400  # more than a layer has weights
SHARES = {"run": (0.0, 0.3, 0.6, 0.95), "_branch": (0.5,)}
FIRST = {"run": 1, "_branch": 5}  # what a tree is made of, before its first round, is left out


@pytest.mark.parametrize(
    ("phase", "way"),
    [
        ("run", ()),
        ("run", ("--enable_input_split",)),
        # Where weights are shared too, bounds are computed in step, and branching apart.
        ("_branch", ("--fsdp",)),
        ("_branch", ("--fsdp", "--enable_input_split")),
    ],
    ids=["activations", "inputs", "activations, fsdp", "inputs, fsdp"],
)
def test_memory_that_runs_out_on_one_rank_of_three_flips_no_verdict(
    tmp_path: Path, phase: str, way: tuple[str, ...]
) -> None:
    layers = layers_of((3, 20, 12, 2), 0)
    save_mlp(tmp_path / "net.onnx", *layers)
    for name, gap in (("holds", -0.9), ("fails", 0.9)):
        (tmp_path / f"{name}.vnnlib").write_text(property_beside(layers, gap))
    rows = ["net.onnx,holds.vnnlib,300\n", "net.onnx,fails.vnnlib,300\n"]
    (tmp_path / "instances.csv").write_text("".join(rows * (1 + len(SHARES[phase]))))
    script = tmp_path / "wrapper.py"
    script.write_text(
        WRAPPER.format(
            root=str(ROOT), phase=phase, first=FIRST[phase], shares=SHARES[phase], large=LARGE
        )
    )
    run = torchrun(
        tmp_path, script,
        "--device", "cpu", "--csv_name", "instances.csv", "--result_json", "out.json",
        "--complete_verifier", "bab", "--pgd_order", "skip", "--iteration", "3",
        "--init_iteration", "3", *way, ranks=3,
    )  # fmt: skip
    verdicts = [record["verdict"] for record in run.records]
    assert len(verdicts) == 2 * (1 + len(SHARES[phase])), run.stderr
    assert run.stderr.count("planted at") >= len(SHARES[phase]), "hardly anything failed"
    right = ["unsat", "sat"]
    assert verdicts[:2] == right
    for number, verdict in enumerate(verdicts):
        assert verdict in (right[number % 2], "unknown"), (number, verdict)
