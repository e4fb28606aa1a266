"""Every config that is shipped loads, and its comments tell the truth about what it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from complete_verifier.config import load_config

ROOT = Path(__file__).parents[3]
CONFIGS = sorted((ROOT / "exp_configs").rglob("*.yaml"))
BENCHMARKS = ROOT.parent / "shared" / "benchmarks"


def test_there_are_configs() -> None:
    assert len(CONFIGS) >= 12


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_config_loads(path: Path) -> None:
    loaded = load_config(["--config", str(path)])
    assert set(loaded.origins)
    assert all(origin.startswith(str(path)) for origin in loaded.origins.values())


@pytest.mark.benchmarks
@pytest.mark.parametrize(
    "path",
    [path for path in CONFIGS if path.parent.name.startswith("vnncomp")],
    ids=lambda path: path.stem,
)
def test_batch_is_found_under_the_root_path(path: Path) -> None:
    """With `--root_path`, the batch of each category is found where the benchmarks lie."""
    year = path.parent.name.replace("vnncomp", "vnncomp20")
    root = BENCHMARKS / year / path.stem
    if not root.is_dir():
        root = BENCHMARKS / year / path.stem.replace("_", "-")
    if not root.is_dir():
        pytest.skip(f"{root} is not on this machine")
    loaded = load_config(["--config", str(path), "--root_path", str(root)])
    assert loaded.config.general.csv_name is not None
    found = loaded.paths.find(loaded.config.general.csv_name, "general.csv_name")
    assert found == root / "instances.csv"
