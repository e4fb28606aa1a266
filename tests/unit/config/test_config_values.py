"""What may be written: numbers in every spelling, lists, includes, and precedence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from complete_verifier.config.callables import NamedCallable, parse_callable


@pytest.mark.parametrize("written", ["1000000000", "1e9", "1.0e9", "1_000_000_000", "1.0e+9"])
def test_whole_numbers_in_every_spelling(written: str, load) -> None:
    config = load(f"solver:\n  crown:\n    batch_size: {written}\n").config
    assert config.solver.crown.batch_size == 1_000_000_000
    assert isinstance(config.solver.crown.batch_size, int)


@pytest.mark.parametrize("written", [".inf", ".Inf", "inf", "+.inf"])
def test_infinity(written: str, load) -> None:
    assert load(f"specification:\n  norm: {written}\n").config.specification.norm == math.inf


@pytest.mark.parametrize(
    ("written", "value"), [("1e-3", 1e-3), ("1.e-2", 1e-2), (".5", 0.5), ("0.", 0.0), ("-3", -3.0)]
)
def test_fractions_in_every_spelling(written: str, value: float, load) -> None:
    text = f"bab:\n  branching:\n    nonlinear_split:\n      loose_tanh_threshold: {written}\n"
    loaded = load(text).config.bab.branching.nonlinear_split
    assert loaded.loose_tanh_threshold == value


@pytest.mark.parametrize(("written", "value"), [("True", True), ("yes", True), ("off", False)])
def test_truth_values_as_yaml_writes_them(written: str, value: bool, load) -> None:
    assert load(f"parallel:\n  fsdp: {written}\n").config.parallel.fsdp is value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("merge_bn", ("merge_bn",)),
        ("[merge_bn, fix_gtrsb]", ("merge_bn", "fix_gtrsb")),
        ("remove_a, remove_b", ("remove_a", "remove_b")),
        ("[]", ()),
    ],
)
def test_text_serves_where_a_list_is_declared(written: str, value: tuple[str, ...], load) -> None:
    config = load(f"model:\n  onnx_optimization_flags: {written}\n").config
    assert config.model.onnx_optimization_flags == value


def test_joint_flags_are_text_or_list(load) -> None:
    key = "model:\n  onnx_vnnlib_joint_optimization_flags: "
    one = load(f"{key}peel_off_last_softmax_layer\n").config
    several = load(f"{key}[peel_off_last_softmax_layer]\n").config
    assert one.model.onnx_vnnlib_joint_optimization_flags == "peel_off_last_softmax_layer"
    assert several.model.onnx_vnnlib_joint_optimization_flags == ("peel_off_last_softmax_layer",)


@pytest.mark.parametrize(("written", "value"), [("auto", "auto"), ("0.01", 0.01)])
def test_step_size_is_auto_or_a_number(written: str, value: object, load) -> None:
    assert load(f"attack:\n  pgd_alpha: {written}\n").config.attack.pgd_alpha == value


def test_check_adv_takes_words_and_truth_values(load) -> None:
    key = "attack:\n  input_split_check_adv:\n    enabled: "
    assert load(f"{key}True\n").config.attack.input_split_check_adv.enabled == "true"
    assert load(f"{key}auto\n").config.attack.input_split_check_adv.enabled == "auto"


def test_structured_value_is_kept_as_json(load) -> None:
    config = load("model:\n  bound_opts: {relu: same-slope, depth: 2, flags: [true]}\n").config
    assert config.model.bound_opts == '{"depth": 2, "flags": [true], "relu": "same-slope"}'


def test_one_index_serves_where_a_list_is_declared(load) -> None:
    assert load("data:\n  select_instance: 4\n").config.data.select_instance == (4,)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "solver:\n  crown:\n", "null\n"])
def test_empty_files_and_sections_are_the_defaults(text: str, load) -> None:
    loaded = load(text)
    assert loaded.config == load(None).config
    assert loaded.origins == {}


def test_empty_text_means_null_for_optional_text(load) -> None:
    assert load("general:\n  csv_name: ''\n").config.general.csv_name is None


def test_a_flag_beats_the_file_and_the_file_beats_the_default(load) -> None:
    text = "solver:\n  alpha-crown:\n    iteration: 7\n    lr_alpha: 0.5\n"
    loaded = load(text, "--init_iteration", "9")
    assert loaded.config.solver.alpha_crown.iteration == 9
    assert loaded.config.solver.alpha_crown.lr_alpha == 0.5
    assert loaded.config.solver.alpha_crown.lr_decay == 0.98
    assert loaded.origins["solver.alpha-crown.iteration"] == "--init_iteration"
    assert loaded.origins["solver.alpha-crown.lr_alpha"] == "x.yaml:4"
    assert "solver.alpha-crown.lr_decay" not in loaded.origins


def test_a_file_of_one_bare_string_is_an_include(load, tmp_path: Path) -> None:
    """The name is relative to the file it stands in, not to the working directory."""
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "a.yaml").write_text("b.yaml", encoding="utf-8")
    (folder / "b.yaml").write_text("general:\n  seed: 5\n", encoding="utf-8")
    loaded = load("sub/a.yaml\n")
    assert loaded.config.general.seed == 5
    assert loaded.origins["general.seed"] == "sub/b.yaml:2"
    assert loaded.paths.config_folders == (Path("."), Path("sub"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default_adv_saver", NamedCallable("default_adv_saver")),
        ('Customized("m.py", "f")', NamedCallable("f", "m.py")),
        ("Customized('m', 'f')", NamedCallable("f", "m")),
        ('Customized("m", "f", a=3, b=[1, 2])', NamedCallable("f", "m", "a=3, b=[1, 2]")),
    ],
)
def test_callables_are_parsed(text: str, expected: NamedCallable) -> None:
    parsed = parse_callable(text)
    assert parsed == expected
    assert parse_callable(str(parsed)) == expected


@pytest.mark.parametrize("text", ["__import__('os').system('x')", 'Customized("m")', "a b", ""])
def test_anything_else_is_no_callable(text: str) -> None:
    assert parse_callable(text) is None
