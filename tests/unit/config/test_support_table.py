"""Every key does what the documented table says, and every published value is read.

A failure means that a published config stops loading, or that a key is dropped in silence.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from complete_verifier.config import ConfigError, LoadedConfig, load_config
from complete_verifier.config.keys import key_table, same_value
from complete_verifier.config.support import LEGACY_KEYS, Status, support_of
from complete_verifier.config.support_table import support_table

DATA = Path(__file__).parent / "data"
KEYS = [row["key"] for row in csv.DictReader((DATA / "abcrown_config_keys.csv").open())]
CUSTOMIZED = 'Customized("module", "function")'
SPECIAL = {
    "model.input_shape": [[-1, 3, 4, 4]],
    "model.name": ["resnet2b", CUSTOMIZED],
    "data.select_instance": [[1, 2]],
    "data.start": [3],
    "data.end": [7],
    "specification.norm": [1, 2, 3],
}


def values_of(key: str) -> list[Any]:
    """Values of a key's type that are not its default, as YAML holds them."""
    if key in SPECIAL:
        return SPECIAL[key]
    spec = key_table()[key]
    kind, bounds = spec.kind, spec.info.bounds
    values: list[Any] = list(kind.choices)
    if kind.boolean:
        values += [True, False]
    if kind.integer or kind.number:
        low = bounds.at_least if bounds.at_least is not None else bounds.above
        step = 0.5 if bounds.at_most is not None else 1
        number = (0.0 if low is None else low) + step
        values.append(int(number) if kind.integer else number)
    if kind.item is not None:
        values.append([1] if kind.item.integer or kind.item.number else ["some"])
    if kind.function:
        values.append(CUSTOMIZED)
    if kind.structured:
        values.append({"some": 1})
    if not values and kind.text:
        values.append("some")
    assert values, key
    return values


def loaded_with(key: str, value: Any, folder: Path) -> LoadedConfig:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(nested), encoding="utf-8")
    return load_config(["--config", str(file)])


@pytest.mark.parametrize("key", KEYS)
def test_a_key_loads_or_is_refused_as_the_table_says(key: str, tmp_path: Path) -> None:
    support, default = support_of(key), key_table()[key].default
    for value in values_of(key):
        try:
            loaded = loaded_with(key, value, tmp_path)
        except ConfigError as error:
            assert str(error).startswith(f"{key}: "), error
            named = isinstance(value, str) and "Customized" in value
            assert support.status is Status.REFUSED or named or value in support.refused, error
            continue
        assert f"{key}" in loaded.origins
        is_default = same_value(value, default) or str(value) == str(default)
        listed = any(same_value(value, each) for each in support.implemented)
        honoured = support.status is Status.IMPLEMENTED or listed or is_default
        assert (key in loaded.ignored) is not honoured, (value, loaded.ignored)
        assert honoured or support.status is Status.IGNORED


def test_the_table_has_a_row_per_key() -> None:
    rows = support_table().splitlines()[2:]
    keys = [row.split("`")[1] for row in rows]
    assert keys == [*key_table(), *LEGACY_KEYS]
    words = {row.split("|")[2].strip() for row in rows}
    assert words == {"implemented", "only speed or tightness: warned about", "refused"}
    cuts = next(row for row in rows if "`bab.cut.enabled`" in row)
    assert "cutting planes are not part of this release" in cuts


PUBLISHED = {
    "bab.interm_transfer": [True, False],
    "bab.cut.biccos.constraint_strengthening": [False],
    "bab.get_upper_bound": [True],
    "model.onnx_optimization_flags": [
        "merge_bn",
        "merge_linear",
        "merge_gemm_reshape_bn",
        ["remove_matmul_inplace", "remove_squeeze_in_last_layer"],
        ["fix_gtrsb"],
    ],
    "model.onnx_vnnlib_joint_optimization_flags": [
        "peel_off_last_softmax_layer",
        ["peel_off_last_softmax_layer"],
    ],
    "data.mean": [0.5, [0.4914, 0.4822, 0.4465]],
    "data.std": [0.25, [0.2023, 0.1994, 0.2010]],
    "attack.pgd_alpha": ["auto", 0.01],
    "attack.attack_mode": ["diverse_pgd", "diversed_GAMA_PGD"],
    "solver.bound_prop_method": ["forward+backward", "alpha-crown"],
    "data.dataset": ["MNIST", "CIFAR", CUSTOMIZED],
    "model.name": ["cifar_model_wide", 'Customized("custom_model_data", "net", in_dim=2)'],
    "specification.robustness_type": ["verified-acc", "runnerup", "clean-runnerup"],
    "bab.cut.enabled": [True],
    "bab.cut.biccos.enabled": [True],
    "solver.mip.parallel_solvers": [16],
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_published_values_are_read(key: str, tmp_path: Path) -> None:
    for value in PUBLISHED[key]:
        loaded = loaded_with(key, value, tmp_path)
        assert key in loaded.origins, json.dumps(value)


def test_a_config_that_is_a_bare_string_names_another(tmp_path: Path) -> None:
    (tmp_path / "resnet.yaml").write_text("solver:\n  batch_size: 77\n")
    (tmp_path / "cifar_resnet_2b.yaml").write_text("resnet.yaml\n")
    loaded = load_config(["--config", str(tmp_path / "cifar_resnet_2b.yaml")])
    assert loaded.config.solver.batch_size == 77
