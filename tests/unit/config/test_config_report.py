"""The fingerprint of a config, and the text of `--print_config`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from complete_verifier.config import Config, config_hash, describe_config
from complete_verifier.config.keys import build_config, key_table
from complete_verifier.config.render import render_value


def _other(value: object) -> object:
    """A value of the same type that differs from `value`."""
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, float) and value not in (0.0, float("inf")) else 1.0


def test_every_truth_value_and_number_is_part_of_the_hash() -> None:
    keys = [key for key, spec in key_table().items() if isinstance(spec.default, (bool, float))]
    hashes = {config_hash(build_config({key: _other(key_table()[key].default)})) for key in keys}
    assert len(hashes | {config_hash(Config())}) == len(keys) + 1


def test_the_hash_is_the_same_in_another_process() -> None:
    """Ranks compare it, so it may not hang on the process (Python's own hash does)."""
    code = "from complete_verifier.config import *; print(config_hash(Config()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == config_hash(Config())


def test_true_and_one_have_different_hashes() -> None:
    assert config_hash(build_config({"parallel.tp": True})) != config_hash(Config())


def test_print_config_shows_what_differs_and_where_it_is_from(load) -> None:
    loaded = load("solver:\n  batch_size: 64\nbab:\n  timeout: 9\n", "--fsdp")
    assert describe_config(loaded.config, loaded.origins).splitlines() == [
        "bab.timeout: 9       # x.yaml:4",
        "parallel.fsdp: true  # --fsdp",
    ]


def test_print_config_of_the_defaults() -> None:
    assert describe_config(Config(), {}) == "every value is its default"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (float("inf"), ".inf"),
        (360.0, "360"),
        (0.5, "0.5"),
        ((1, -1), "[1, -1]"),
        ("", '""'),
    ],
)
def test_values_are_written_as_yaml_writes_them(value: object, text: str) -> None:
    assert render_value(value) == text
