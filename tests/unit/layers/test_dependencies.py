"""What the library imports is what an installation brings."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("complete_verifier", "auto_LiRPA_patches")
INSTALLED_AS = {"yaml": "pyyaml", "google": "onnx"}  # onnx brings protobuf
APART = {"auto_LiRPA", "vnnlib"}  # see pyproject.toml; vnnlib is an extra


def imported(path: Path) -> set[str]:
    """Top-level names of the absolute imports of a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def test_every_import_is_declared_as_a_dependency() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    declared = set(re.findall(r'"([A-Za-z0-9_-]+)', block.group(1)))
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = set().union(*map(imported, files))
    foreign = names - set(sys.stdlib_module_names) - set(PACKAGES) - APART
    assert "torch" in foreign
    assert {INSTALLED_AS.get(name, name) for name in foreign} <= declared
