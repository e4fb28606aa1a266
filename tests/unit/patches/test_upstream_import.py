"""auto_LiRPA is imported without a trace in torch, numpy, warnings and logging.

Run in fresh interpreters: a failure means that merely starting the verifier changes how unrelated
code in the same process behaves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def run_python(code: str) -> str:
    """Runs `code` in a fresh interpreter at the repository root and returns its stdout."""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


STATE = """
import logging, sys, warnings
import numpy, torch, torch.onnx

def jit_flag(setter):
    value = setter(True)
    setter(value)
    return value

def state():
    foreign = {name: module for name, module in sys.modules.items()
               if name.split(".")[0] in ("numpy", "tqdm", "appdirs", "setuptools")
               or name.startswith(("torch.onnx", "torch.utils.cpp_extension"))}
    return {
        "modules": foreign,
        "contents": {name: set(vars(m)) for name, m in foreign.items()},
        "torch": set(vars(torch)),
        "script": torch.jit.script,
        "executor": jit_flag(torch._C._jit_set_profiling_executor),
        "mode": jit_flag(torch._C._jit_set_profiling_mode),
        "filters": list(warnings.filters),
        "handlers": list(logging.getLogger().handlers),
    }
"""


def test_import_leaves_the_process_as_it_was() -> None:
    output = run_python(
        STATE
        + """
before = state()
from auto_LiRPA_patches.compat.upstream import import_upstream
module = import_upstream()
after = state()
print(module.__version__, [key for key in before if before[key] != after[key]])
"""
    )
    assert output.strip() == "0.3 []"


def test_the_state_that_is_compared_would_show_upstreams_side_effects() -> None:
    output = run_python(
        STATE
        + """
before = state()
torch._C._jit_set_profiling_executor(False)
torch._C._jit_set_profiling_mode(False)
warnings.simplefilter("once")
logging.basicConfig()
after = state()
print([key for key in before if before[key] != after[key]])
"""
    )
    assert output.strip() == "['executor', 'mode', 'filters', 'handlers']"


def test_flags_that_were_off_stay_off() -> None:
    output = run_python(
        """
import torch
torch._C._jit_set_profiling_executor(False)
from auto_LiRPA_patches.compat.upstream import import_upstream
import_upstream()
print(torch._C._jit_set_profiling_executor(True), torch._C._jit_set_profiling_mode(True))
"""
    )
    assert output.strip() == "False True"


def test_importing_our_packages_imports_neither_torch_nor_auto_lirpa() -> None:
    output = run_python(
        """
import sys
import auto_LiRPA_patches, auto_LiRPA_patches.registry, auto_LiRPA_patches.compat
import complete_verifier.model
print([name for name in ("torch", "auto_LiRPA", "onnx") if name in sys.modules])
"""
    )
    assert output.strip() == "[]"


def test_missing_auto_lirpa_is_an_error_with_the_line_to_run() -> None:
    output = run_python(
        """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "auto_LiRPA" else find_spec(name)
from auto_LiRPA_patches import registry
from auto_LiRPA_patches.errors import PatchError
try:
    registry.apply()
except PatchError as error:
    print(error)
"""
    )
    assert "auto_LiRPA is not installed" in output
    assert output.strip().endswith("pip install --no-deps auto_LiRPA==0.3")


def test_the_table_of_patches_is_printed_without_torch() -> None:
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "auto_LiRPA_patches"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0
    lines = finished.stdout.splitlines()
    assert lines[0].split()[:3] == ["id", "target", "auto_LiRPA"]
    assert [line.split()[0] for line in lines[2:]] == [
        "parse-module",
        "named-members",
        "buffers-are-constant",
        "no-tangent-tables",
    ]
    assert not any(line.split("|")[-1].strip() == "torch" for line in finished.stderr.splitlines())
