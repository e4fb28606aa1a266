"""Torch starts without meta kernels, and gets them when its compiler is wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys
from complete_verifier.torch_start import defer_meta_kernels
defer_meta_kernels()
import torch
from complete_verifier.torch_start import register_generators
register_generators()
torch.rand(2, generator=torch.Generator().manual_seed(1))
assert "torch._decomp" not in sys.modules, "torch has loaded its decompositions"
layer = torch.nn.Linear(3, 2)
layer(torch.ones(4, 3)).sum().backward()
assert layer.weight.grad is not None
points = torch.ones(4, 3, device="meta")
try:
    torch.cdist(points, points)
except NotImplementedError:
    print("no meta kernels yet")
import torch._dynamo
assert torch.cdist(points, points).shape == (4, 4)
twice = torch.compile(lambda x: x + x, backend="eager")
print("compiled", float(twice(torch.ones(()))))
"""


def test_meta_kernels_wait_until_they_are_wanted() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:2] == ["no meta kernels yet", "compiled 2.0"]


def test_nothing_happens_where_torch_is_there_already() -> None:
    import torch

    from complete_verifier.torch_start import defer_meta_kernels

    before, finders = torch._meta_registrations, list(sys.meta_path)
    defer_meta_kernels()
    assert torch._meta_registrations is before
    assert sys.meta_path == finders
