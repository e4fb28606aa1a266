"""The declared keys against the published interface: every key, default, flag and choice."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from complete_verifier.config import Config, ConfigError
from complete_verifier.config.command_line import LIST_FLAGS, PATH_FLAGS, SWITCHES, flag_table
from complete_verifier.config.keys import build_config, flatten, key_table, section_names
from complete_verifier.config.kinds import kind_of
from complete_verifier.config.solver import SolverConfig

DATA = Path(__file__).parent / "data"
ROWS = list(csv.DictReader((DATA / "abcrown_config_keys.csv").open(encoding="utf-8")))
NEW_KEYS = {
    "parallel.world_size": (None, "--world_size"),
    "parallel.fsdp": (False, "--fsdp"),
    "parallel.tp": (1, "--tp"),
    "parallel.tp_intermediate": ("exact", "--tp_intermediate"),
    "parallel.shard_specs": ("auto", "--shard_specs"),
    "parallel.shard_domains": ("auto", "--shard_domains"),
    "parallel.backend": ("auto", "--backend"),
    "parallel.timeout": (600.0, "--parallel_timeout"),
    "parallel.fsdp_prefetch": (True, "--fsdp_prefetch"),
    "parallel.fsdp_shared_memory": (True, "--fsdp_shared_memory"),
    "bab.force_synchronous": (False, "--force_synchronous"),
    "bab.tile_size": (128, "--tile_size"),
    "general.result_json": (None, "--result_json"),
    "general.measure_memory": (False, "--measure_memory"),
}


def _published_default(text: str) -> Any:
    """The default as YAML reads it, in the form that a config keeps."""
    value = text if text.startswith("Customized") else yaml.safe_load(text)
    return tuple(value) if isinstance(value, list) else value


def test_published_keys_keep_their_defaults() -> None:
    for row in ROWS:
        spec = key_table()[row["key"]]
        default = _published_default(row["default"])
        shown = str(spec.default) if isinstance(default, str) else spec.default
        assert shown == default, row
        assert isinstance(spec.default, bool) == isinstance(default, bool), row


def test_published_keys_keep_their_flags() -> None:
    for row in ROWS:
        spec = key_table()[row["key"]]
        assert spec.flag == row["cli_flag"]
        assert spec.info.negated == (row["cli_action"] == "store_false"), row


def test_published_choices_are_all_admitted() -> None:
    for row in ROWS:
        kind = key_table()[row["key"]].kind
        choices = yaml.safe_load(row["choices"]) if row["choices"] else []
        # The two lists of rewrites admit any text: published configs hold more than is declared.
        assert kind.item is not None or set(choices) <= set(kind.choices), row


def test_the_keys_are_the_published_ones_and_the_new_ones() -> None:
    assert len(ROWS) == 278
    assert set(key_table()) == {row["key"] for row in ROWS} | set(NEW_KEYS)


def test_new_keys_have_their_defaults_and_flags() -> None:
    table = key_table()
    assert {key: (table[key].default, table[key].flag) for key in NEW_KEYS} == NEW_KEYS


def test_the_list_of_flags_is_frozen() -> None:
    """A flag is a promise to users; adding or losing one must show up in a review."""
    frozen = (DATA / "flags.txt").read_text(encoding="utf-8").split()
    assert sorted([*flag_table(), *SWITCHES, *PATH_FLAGS, *LIST_FLAGS]) == frozen


def test_every_flag_belongs_to_one_key() -> None:
    flags = [spec.flag for spec in key_table().values()]
    assert len(set(flags)) == len(flags)


def test_help_is_one_short_sentence() -> None:
    for key, spec in key_table().items():
        text = spec.info.help
        assert text.endswith(".") and text[:4].lower() != text[:4] and len(text) <= 90, key


def test_defaults_have_the_type_they_declare() -> None:
    """Guards against an annotation that its own default does not satisfy."""
    names = {bool: "boolean", int: "integer", float: "number", type(None): "optional"}
    for key, spec in key_table().items():
        admitted = names.get(type(spec.default))
        assert admitted is None or getattr(spec.kind, admitted), key


def test_default_config_is_valid_and_round_trips() -> None:
    assert build_config({}) == Config()
    assert build_config(flatten(Config())) == Config()


def test_attribute_path_is_the_dotted_key_with_underscores() -> None:
    config = build_config({"solver.alpha-crown.iteration": 7})
    assert config.solver.alpha_crown.iteration == 7
    assert Config().bab.branching.input_split.enable is False


def test_section_names_cover_every_key() -> None:
    assert {spec.section for spec in key_table().values()} <= section_names()


@pytest.mark.parametrize("name", ["batch_size", "no_such_key"])
def test_a_config_cannot_be_written_to(name: str) -> None:
    # A slotted frozen class raises TypeError for a foreign name on some Python versions.
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        setattr(Config().solver, name, 1)


def test_ranges_hold_for_configs_built_in_code() -> None:
    with pytest.raises(ConfigError) as caught:
        SolverConfig(batch_size=0)
    assert str(caught.value) == "solver.batch_size: expected a value >= 1, got 0."


def test_positional_construction_is_refused() -> None:
    with pytest.raises(TypeError):
        SolverConfig(64)  # type: ignore[misc]


def test_kind_of_a_union_admits_each_part() -> None:
    kind = kind_of(int | bool | None)
    assert (kind.integer, kind.boolean, kind.optional, kind.text) == (True, True, True, False)


def test_import_pulls_in_neither_torch_nor_numpy() -> None:
    """Start-up time: the config must be checked before the slow imports begin."""
    code = (
        "import sys, complete_verifier.config; "
        "print([name for name in ('torch', 'numpy', 'auto_LiRPA') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
