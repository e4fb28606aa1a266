"""Flags: spellings, optional values of booleans, lists, and the flags that are no keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from complete_verifier.config.command_line import flag_table


@pytest.mark.parametrize("flags", [["--timeout", "5"], ["--timeout=5"]])
def test_value_after_a_space_or_an_equals_sign(flags: list[str], load) -> None:
    assert load(None, *flags).config.bab.timeout == 5.0


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--fsdp"], True),
        (["--fsdp", "true"], True),
        (["--fsdp=false"], False),
        (["--fsdp", "False"], False),
        (["--fsdp", "--fsdp", "false"], False),
    ],
)
def test_boolean_flag_takes_an_optional_value(flags: list[str], value: bool, load) -> None:
    assert load("parallel:\n  fsdp: true\n", *flags).config.parallel.fsdp is value


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--no_incomplete"], False),
        (["--no_incomplete", "true"], False),
        (["--no_incomplete", "false"], True),
    ],
)
def test_negated_flag_turns_its_key_off(flags: list[str], value: bool, load) -> None:
    text = f"general:\n  enable_incomplete_verification: {not value}\n"
    assert load(text, *flags).config.general.enable_incomplete_verification is value


def test_every_negated_flag_has_a_true_default() -> None:
    """With a default of false, such a flag would have nothing to turn off."""
    negated = [spec for spec in flag_table().values() if spec.info.negated]
    assert len(negated) > 20 and all(spec.default is True for spec in negated)


@pytest.mark.parametrize(
    ("flags", "value"), [(["--tp"], True), (["--tp", "1"], 1), (["--tp=true"], True)]
)
def test_degree_of_tensor_parallelism_is_optional(flags: list[str], value: int, load) -> None:
    tp = load(None, *flags).config.parallel.tp
    assert tp == value and type(tp) is type(value)


@pytest.mark.parametrize("word", ["auto", "false"])
def test_shard_specs_takes_auto_or_a_truth_value(word: str, load) -> None:
    expected = {"auto": "auto", "false": False}[word]
    assert load(None, "--shard_specs", word).config.parallel.shard_specs == expected


@pytest.mark.parametrize(
    "words", [["-1", "3", "32", "32"], ["[-1, 3, 32, 32]"]], ids=["words", "brackets"]
)
def test_list_flag_takes_words_or_brackets(words: list[str], load) -> None:
    config = load(None, "--input_shape", *words, "--seed", "3").config
    assert config.model.input_shape == (-1, 3, 32, 32)
    assert config.general.seed == 3


def test_empty_csv_name_turns_the_batch_off(load) -> None:
    text = "general:\n  csv_name: instances.csv\n"
    for flags in (["--csv_name", ""], ["--csv_name="]):
        assert load(text, *flags).config.general.csv_name is None


def test_text_flag_takes_what_yaml_would_read_as_a_number(load) -> None:
    assert load(None, "--results_file", "2024").config.general.results_file == "2024"


def test_value_with_an_equals_sign_is_kept_whole(load) -> None:
    assert load(None, "--onnx_path=a=b.onnx").config.model.onnx_path == "a=b.onnx"


def test_switches_and_paths_are_no_keys(load) -> None:
    switches = ("--print_config", "--print_plan", "--resume", "--csv_name", "i.csv")
    loaded = load(None, *switches, "--rank_logs", "logs", "--given_up", "lost.json")
    assert (loaded.print_config, loaded.print_plan, loaded.resume) == (True, True, True)
    assert (loaded.rank_logs, loaded.given_up) == (Path("logs"), Path("lost.json"))
    assert loaded.hash == load(None, "--csv_name", "i.csv").hash
    assert loaded.origins == {"general.csv_name": "--csv_name"}


def test_help_groups_by_section_and_shows_defaults(load, capsys) -> None:
    with pytest.raises(SystemExit) as exited:
        load(None, "--help")
    assert exited.value.code == 0
    text = capsys.readouterr().out
    assert "\nsolver.alpha-crown:\n" in text
    assert "  --init_iteration INT\n      iteration: Optimisation steps. (default 100)" in text
    assert all(f"  {flag}" in text for flag in flag_table())
