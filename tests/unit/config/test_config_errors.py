"""One test per class of config error, each comparing the whole text of the sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

TEXT_ERRORS = {
    "unknown key": (
        "solver:\n  betch_size: 3\n",
        "solver.betch_size: unknown key (x.yaml:2). The nearest key is solver.batch_size.",
    ),
    "unknown key that belongs elsewhere": (
        "solver:\n  timeout: 3\n",
        "solver.timeout: unknown key (x.yaml:2). The nearest key is bab.timeout.",
    ),
    "key spelled as its attribute": (
        "solver:\n  alpha_crown:\n    iteration: 3\n",
        "solver.alpha_crown: unknown key (x.yaml:2). The nearest key is solver.alpha-crown.",
    ),
    "unknown section": (
        "general:\n  seed: 1\nsolvr:\n  batch_size: 3\n",
        "solvr: unknown key (x.yaml:3). The nearest key is solver.",
    ),
    "unknown key that resembles none": (
        "general:\n  zzzzqqqq: 1\n",
        "general.zzzzqqqq: unknown key (x.yaml:2). --help lists every key.",
    ),
    "duplicate key": (
        "solver:\n  batch_size: 3\n  crown:\n    batch_size: 4\n  batch_size: 5\n",
        "solver.batch_size: given twice, at x.yaml:2 and x.yaml:5. Keep one of the two.",
    ),
    "duplicate section": (
        "solver:\n  batch_size: 3\nbab:\nsolver:\n  crown:\n",
        "solver: given twice, at x.yaml:1 and x.yaml:4. Keep one of the two.",
    ),
    "wrong type: text for a number": (
        "bab:\n  timeout: lots\n",
        'bab.timeout: expected a number > 0, got the text "lots" (x.yaml:2). '
        "Correct it, or remove the line for the default 360.",
    ),
    "wrong type: quoted number": (
        "bab:\n  timeout: '300'\n",
        'bab.timeout: expected a number > 0, got the text "300" (x.yaml:2). '
        "Correct it, or remove the line for the default 360.",
    ),
    "wrong type: list for an int": (
        "general:\n  seed: [1, 2]\n",
        "general.seed: expected an int, got the list [1, 2] (x.yaml:2). "
        "Correct it, or remove the line for the default 100.",
    ),
    "wrong type: fraction for an int": (
        "general:\n  seed: 1.5\n",
        "general.seed: expected an int, got 1.5 (x.yaml:2). "
        "Correct it, or remove the line for the default 100.",
    ),
    "wrong type: truth value for an int": (
        "general:\n  seed: true\n",
        "general.seed: expected an int, got true (x.yaml:2). "
        "Correct it, or remove the line for the default 100.",
    ),
    "wrong type: number for text": (
        "general:\n  results_file: 5\n",
        "general.results_file: expected text, got 5 (x.yaml:2). "
        "Put it in quotes, or remove the line for the default out.txt.",
    ),
    "wrong type: number for a truth value": (
        "parallel:\n  fsdp: 2\n",
        "parallel.fsdp: expected true or false, got 2 (x.yaml:2). "
        "Correct it, or remove the line for the default false.",
    ),
    "wrong type: section for a value": (
        "solver:\n  batch_size:\n    size: 3\n",
        "solver.batch_size: expected an int >= 1, got a section (x.yaml:2). "
        "Correct it, or remove the line for the default 64.",
    ),
    "wrong type: nothing for a value": (
        "solver:\n  batch_size:\n",
        "solver.batch_size: expected an int >= 1, got nothing (x.yaml:2). "
        "Correct it, or remove the line for the default 64.",
    ),
    "wrong type: one bad item of a list": (
        "data:\n  select_instance: [1, two]\n",
        "data.select_instance: expected a list, each an int >= 0 or null, got the list [1, the "
        'text "two"] (x.yaml:2). Correct it, or remove the line for the default null.',
    ),
    "not a number": (
        "bab:\n  decision_thresh: .nan\n",
        "bab.decision_thresh: expected a number >= 0, got .nan (x.yaml:2). "
        "Correct it, or remove the line for the default 0.",
    ),
    "wrong type: many lines of text": (
        "general:\n  seed: |\n    a\n    b\n",
        'general.seed: expected an int, got the text "a\\nb" (x.yaml:2). '
        "Correct it, or remove the line for the default 100.",
    ),
    "wrong choice": (
        "general:\n  device: cudaa\n",
        'general.device: expected one of cpu, cuda, got the text "cudaa" (x.yaml:2). '
        "Did you mean cuda? Or remove the line for the default cuda.",
    ),
    "wrong choice beside a number": (
        "attack:\n  pgd_alpha: automatic\n",
        'attack.pgd_alpha: expected auto or a number > 0, got the text "automatic" (x.yaml:2). '
        "Did you mean auto? Or remove the line for the default auto.",
    ),
    "scalar where a section belongs": (
        "general: 3\n",
        "general: expected a section, got 3 (x.yaml:1). "
        "Indent its keys below it, for example device.",
    ),
    "list where a section belongs": (
        "solver:\n  crown: [1]\n",
        "solver.crown: expected a section, got a list (x.yaml:2). "
        "Indent its keys below it, for example batch_size.",
    ),
    "list at the top": (
        "- general\n",
        "x.yaml: expected sections such as general and solver at the top, got a list (x.yaml:1). "
        "Write each section's name followed by a colon.",
    ),
    "list as a key": (
        "general:\n  ? [a, b]\n  : 1\n",
        "general: expected the name of a key, got a list (x.yaml:2). "
        "Write one word followed by a colon.",
    ),
    "below the range": (
        "solver:\n  batch_size: 0\n",
        "solver.batch_size: expected an int >= 1, got 0 (x.yaml:2). "
        "Set it to at least 1, or remove the line for the default 64.",
    ),
    "outside a range with two ends": (
        "solver:\n  start_save_best: 2\n",
        "solver.start_save_best: expected a number >= -1 and <= 1, got 2 (x.yaml:2). "
        "Correct it, or remove the line for the default 0.5.",
    ),
    "start after end": (
        "data:\n  start: 5\n  end: 3\n",
        "data.start: expected at most data.end = 3, got 5 (x.yaml:2 and x.yaml:3). "
        "Lower data.start or raise data.end.",
    ),
    "input shape without the batch": (
        "model:\n  input_shape: [19]\n",
        "model.input_shape: expected [-1, 19], got the list [19] (x.yaml:2). "
        "Correct it, or remove the line for the default null.",
    ),
    "input shape that is one number": (
        "model:\n  input_shape: 19\n",
        "model.input_shape: expected [-1, 19], got 19 (x.yaml:2). "
        "Correct it, or remove the line for the default null.",
    ),
    "image shape without the batch": (
        "model:\n  input_shape: [3, 32, 32]\n",
        "model.input_shape: expected [-1, 3, 32, 32], got the list [3, 32, 32] (x.yaml:2). "
        "Correct it, or remove the line for the default null.",
    ),
    "callable that is none": (
        "attack:\n  adv_saver: Customized(saver)\n",
        'attack.adv_saver: expected Customized("module", "function"), got the text '
        '"Customized(saver)" (x.yaml:2). Correct it, or remove the line for the default '
        "default_adv_saver.",
    ),
    "malformed YAML": (
        "general:\n  seed: [1, 2\nsolver:\n",
        "x.yaml:3: not valid YAML: expected ',' or ']', but got ':'.",
    ),
    "value that contains itself": (
        "model:\n  bound_opts: &a {x: *a}\n",
        "model.bound_opts: a value contains itself (x.yaml:2). Remove the alias.",
    ),
    "tag that would build an object": (
        "general:\n  seed: !!python/object/apply:os.system [ls]\n",
        "general.seed: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed "
        "(x.yaml:2). Write the value without a tag.",
    ),
    "two documents": (
        "general:\n---\nsolver:\n",
        "x.yaml:2: not valid YAML: but found another document.",
    ),
    "control character": (
        "general:\n  seed: 1\x07\n",
        "x.yaml:2: not valid YAML: the character '\\x07' is not allowed.",
    ),
}


@pytest.mark.parametrize("case", TEXT_ERRORS)
def test_error_in_a_file(case: str, error_text) -> None:
    text, expected = TEXT_ERRORS[case]
    assert error_text(text) == expected


FLAG_ERRORS = {
    "unknown flag": (
        ["--batch_siz", "3"],
        "--batch_siz: unknown flag. The nearest flag is --batch_size.",
    ),
    "flag with dashes": (
        ["--world-size", "2"],
        "--world-size: unknown flag. The nearest flag is --world_size.",
    ),
    "flag that resembles none": (["--zzqq"], "--zzqq: unknown flag. --help lists every flag."),
    "flag without its value at the end": (
        ["--timeout"],
        "--timeout: expected a value after the flag, got none. Add the value.",
    ),
    "flag without its value before another": (
        ["--timeout", "--fsdp"],
        "--timeout: expected a value after the flag, got none. Add the value.",
    ),
    "list flag without a value": (
        ["--mean"],
        "--mean: expected a value after the flag, got none. Add the value.",
    ),
    "too many values": (
        ["--timeout", "3", "4"],
        "command line: unexpected '4' after --timeout, which takes one value. "
        "Remove it or name its flag.",
    ),
    "value after a switch": (
        ["--print_config", "x"],
        "command line: unexpected 'x' after --print_config, which takes no value. "
        "Remove it or name its flag.",
    ),
    "word without a flag": (
        ["x.yaml"],
        "command line: unexpected 'x.yaml'. Every value follows a flag; "
        "a config file is given as --config x.yaml.",
    ),
    "wrong type": (
        ["--batch_size", "many"],
        'solver.batch_size: expected an int >= 1, got the text "many" (--batch_size on the '
        "command line). Correct it, or leave --batch_size out for the default 64.",
    ),
    "out of range": (
        ["--batch_size=0"],
        "solver.batch_size: expected an int >= 1, got 0 (--batch_size on the command line). "
        "Set it to at least 1, or leave --batch_size out for the default 64.",
    ),
    "wrong truth value": (
        ["--fsdp", "maybe"],
        'parallel.fsdp: expected true or false, got the text "maybe" (--fsdp on the command '
        "line). Correct it, or leave --fsdp out for the default false.",
    ),
    "broken list": (
        ["--input_shape", "[1, 2"],
        "model.input_shape: expected a list, each an int or null, got the text '[1, 2' "
        "(--input_shape on the command line). Write it as [a, b] or as words with spaces.",
    ),
}


@pytest.mark.parametrize("case", FLAG_ERRORS)
def test_error_on_the_command_line(case: str, error_text) -> None:
    flags, expected = FLAG_ERRORS[case]
    assert error_text(None, *flags) == expected


def test_missing_file(error_text) -> None:
    assert error_text(None, "--config", "none.yaml") == (
        f"none.yaml: config file not found. Check the path given to --config; "
        f"it is relative to {Path.cwd()}."
    )


def test_missing_include(error_text) -> None:
    assert error_text("other.yaml\n") == (
        f"other.yaml: config file not found (included by x.yaml). Check the path given to "
        f"--config; it is relative to {Path.cwd()}."
    )


def test_folder_in_place_of_a_file(error_text) -> None:
    assert error_text(None, "--config", ".") == ".: cannot be read: Is a directory."


def test_file_that_is_not_text(load, error_text) -> None:
    load("")
    Path("y.yaml").write_bytes(b"general:\n  seed: \xff\n")
    assert error_text(None, "--config", "y.yaml") == (
        "y.yaml:2: not UTF-8 text. Save the config as UTF-8."
    )


def test_include_that_leads_back(error_text, tmp_path: Path) -> None:
    (tmp_path / "y.yaml").write_text("x.yaml\n", encoding="utf-8")
    assert error_text("y.yaml\n") == (
        "x.yaml: config files include each other: x.yaml -> y.yaml -> x.yaml. Break the circle."
    )


def test_line_is_that_of_the_included_file(error_text, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "y.yaml").write_text("\n\nsolver:\n  bach_size: 1\n", encoding="utf-8")
    assert error_text("sub/y.yaml\n").startswith("solver.bach_size: unknown key (sub/y.yaml:4).")
