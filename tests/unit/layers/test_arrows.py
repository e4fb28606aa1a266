"""Arrows between packages go down only, and one package talks to torch.distributed.

A failure means that a lower floor has learnt of a higher one.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# package -> packages it must never import (prefixes)
FORBIDDEN = {
    "auto_LiRPA_patches": ("complete_verifier",),
    "auto_LiRPA_patches/sharding": (
        "auto_LiRPA_patches.engine",
        "auto_LiRPA_patches.operators",
        "auto_LiRPA_patches.compat",
        "auto_LiRPA_patches.registry",
    ),
    "auto_LiRPA_patches/operators": (
        "auto_LiRPA_patches.engine",
        "auto_LiRPA_patches.compat",
        "auto_LiRPA_patches.sharding.collectives",
        "auto_LiRPA_patches.sharding.mesh",
    ),
    "auto_LiRPA_patches/engine": (
        "auto_LiRPA_patches.sharding.collectives",
        "auto_LiRPA_patches.sharding.mesh",
    ),
    "complete_verifier/config": (
        "complete_verifier.specification",
        "complete_verifier.model",
        "complete_verifier.bounds",
        "complete_verifier.attack",
        "complete_verifier.results",
        "torch",
        "numpy",
    ),
    "complete_verifier/specification": (
        "complete_verifier.model",
        "complete_verifier.bounds",
        "complete_verifier.attack",
        "torch",
    ),
    "complete_verifier/model": ("complete_verifier.bounds", "complete_verifier.attack"),
    "complete_verifier/bounds": ("complete_verifier.attack", "complete_verifier.results"),
    "complete_verifier/results": ("complete_verifier.bounds", "complete_verifier.attack", "torch"),
}
# Where neurons of one layer are split over ranks, which an operator on the border has to know of;
# the rest of these floors sees `Graph.neurons` alone.
SPLIT_NEURONS = {
    ROOT / "auto_LiRPA_patches" / name
    for name in (
        "operators/linear_tp.py",
        "engine/neurons.py",
        "engine/tensor_parallel.py",
        "engine/build.py",
        "engine/upstream_node.py",
    )
}
COLLECTIVES = ROOT / "auto_LiRPA_patches/sharding/collectives"


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize("package", list(FORBIDDEN))
def test_a_package_imports_nothing_from_a_higher_floor(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in _imports(path)
        if any(_below(name, prefix) for prefix in FORBIDDEN[package])
        if path not in SPLIT_NEURONS or not _below(name, "auto_LiRPA_patches.sharding.collectives")
    ]
    assert wrong == []


def test_only_the_collectives_package_talks_to_torch_distributed() -> None:
    files = [
        path
        for top in ("auto_LiRPA_patches", "complete_verifier")
        for path in (ROOT / top).rglob("*.py")
    ]
    speaking = {
        path for path in files if any(_below(name, "torch.distributed") for name in _imports(path))
    }
    assert speaking
    assert {path.parent for path in speaking} == {COLLECTIVES}
