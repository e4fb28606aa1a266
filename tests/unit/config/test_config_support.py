"""Keys that are not honoured: the harmless run and are listed, the others are refused."""

from __future__ import annotations

import pytest

from complete_verifier.config import Config
from complete_verifier.config.assignment import Assignment
from complete_verifier.config.keys import build_config, key_table
from complete_verifier.config.policy import apply_support
from complete_verifier.config.support import LEGACY_KEYS, SUPPORT, Status, support_of


def test_every_key_has_a_row_with_an_effect() -> None:
    for key in key_table():
        support = support_of(key)
        assert support.effect or support.status is Status.IMPLEMENTED, key


def test_every_row_speaks_for_some_key() -> None:
    for name in SUPPORT:
        if name.endswith("."):
            assert any(key.startswith(name) for key in key_table())
        else:
            assert name in key_table()


def test_a_default_is_never_refused_nor_listed() -> None:
    """Writing a default out must not change a run."""
    given = {key: Assignment(key, spec.default, spec.flag) for key, spec in key_table().items()}
    supported = apply_support(given)
    assert supported.ignored == ()
    assert build_config(supported.values) == Config()


def test_ignored_keys_are_listed_once_with_their_effect(load) -> None:
    text = (
        "solver:\n  batch_size: 3\n  mip:\n    solver_threads: 4\nbab:\n  cut:\n    enabled: yes\n"
    )
    loaded = load(text, "--mip_threads", "5", "--mip_multi_proc", "2")
    assert loaded.ignored == (
        "solver.mip.solver_threads",
        "bab.cut.enabled",
        "solver.mip.parallel_solvers",
    )
    assert loaded.warnings == (
        "ignored solver.mip.solver_threads (--mip_threads), solver.mip.parallel_solvers "
        "(--mip_multi_proc): MIP solvers are not part of this release.",
        "ignored bab.cut.enabled (x.yaml:7): cutting planes are not part of this release.",
    )
    assert loaded.config.solver.batch_size == 3


REFUSED = {
    "data.pkl_path": ("--pkl_path", "a.pkl"),
    "model.onnx_loader": ("--onnx_loader", 'Customized("m", "f")'),
    "specification.type": ("--spec_type", "bound"),
    "specification.robustness_type": ("--robustness_type", "specify-target"),
    "specification.norm": ("--norm", "3"),
    "specification.epsilon_min": ("--epsilon_min", "0.1"),
    "specification.shrink_eps": ("--shrink_eps", "0.1"),
    "solver.invprop.tighten_input_bounds": ("--tighten_input_bounds", "true"),
    "bab.branching.input_split.update_rhs_with_attack": (
        "--input_split_update_rhs_with_attack",
        "true",
    ),
    "attack.attack_tolerance": ("--attack_tolerance", "0.1"),
    "attack.pgd_loss": ("--pgd_loss", 'Customized("m", "f")'),
    "general.prepare_only": ("--prepare_only", "true"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_a_key_that_changes_the_question_is_refused_by_name(key: str, error_text) -> None:
    flag, word = REFUSED[key]
    text = error_text(None, flag, word)
    assert text == f"{key}: {word} is not supported ({flag}): {support_of(key).effect}."


@pytest.mark.parametrize("word", ["Customized", 'Customized("m", "f")'])
def test_a_verifier_of_ones_own_is_refused(word: str, error_text) -> None:
    assert error_text(None, "--complete_verifier", word) == (
        f"general.complete_verifier: {word} is not supported (--complete_verifier): functions "
        f"named in a config are not run in this release; remove the key."
    )


def test_a_verifier_that_is_a_mip_solver_branches_instead(load) -> None:
    loaded = load(None, "--complete_verifier", "mip")
    assert loaded.ignored == ("general.complete_verifier",)
    assert loaded.config.general.complete_verifier == "bab"


@pytest.mark.parametrize("word", ["auto", "bab", "bab-refine"])
def test_branch_and_bound_is_honoured(word: str, load) -> None:
    assert load(None, "--complete_verifier", word).ignored == ()


def test_skipping_the_complete_verifier_is_honoured(load) -> None:
    assert load(None, "--complete_verifier", "skip").ignored == ()


@pytest.mark.parametrize("flags", [["--csv_name", "a.csv"], ["--vnnlib_path", "a.vnnlib"]])
def test_a_vnnlib_file_replaces_the_ball_around_an_image(flags: list[str], load) -> None:
    """Published batch configs name the data set although the VNN-LIB files state the property."""
    loaded = load("data:\n  dataset: CIFAR\nspecification:\n  epsilon: 0.1\n", *flags)
    assert loaded.ignored == ("data.dataset", "specification.epsilon")
    assert loaded.warnings == (
        "ignored data.dataset (x.yaml:2), specification.epsilon (x.yaml:4): "
        "the VNN-LIB file states the property.",
    )


def test_a_vnnlib_file_speaks_of_what_the_network_reads(load) -> None:
    """The file's box is the network's input; there is nothing left to normalise."""
    loaded = load("data:\n  std: [0.2, 0.2, 0.2]\n", "--csv_name", "a.csv")
    assert loaded.ignored == ("data.std",)


def test_a_batch_turned_off_leaves_the_data_set(load) -> None:
    text = "general:\n  csv_name: a.csv\ndata:\n  dataset: CIFAR\n"
    loaded = load(text, "--csv_name", "")
    assert loaded.ignored == () and loaded.config.asks_about_data
    assert not load(text).config.asks_about_data


@pytest.mark.parametrize("word", ["1", "2", ".inf"])
def test_norms_with_bounds_are_honoured(word: str, load) -> None:
    assert load(None, "--norm", word).ignored == ()


@pytest.mark.parametrize(
    ("flag", "given", "used", "is_listed"),
    [
        ("--bound_prop_method", "forward+backward", "forward+crown", True),
        ("--bound_prop_method", "alpha-forward", "alpha-crown", True),
        ("--bound_prop_method", "crown-ibp", "crown-ibp", False),
        ("--pgd_order", "middle", "after", True),
        ("--pgd_order", "after", "after", False),
        ("--attack_mode", "diverse_pgd", "diversed_PGD", False),
        ("--attack_mode", "boundary", "PGD", True),
    ],
)
def test_values_without_an_implementation_are_replaced(
    flag: str, given: str, used: str, is_listed: bool, load
) -> None:
    loaded = load(None, flag, given)
    values = {
        "--bound_prop_method": loaded.config.solver.bound_prop_method,
        "--pgd_order": loaded.config.attack.pgd_order,
        "--attack_mode": loaded.config.attack.attack_mode,
    }
    assert values[flag] == used
    assert bool(loaded.ignored) is is_listed


@pytest.mark.parametrize("key", LEGACY_KEYS)
def test_legacy_keys_are_accepted_and_listed(key: str, load, error_text) -> None:
    *sections, name = key.split(".")
    nested = "".join(f"{'  ' * depth}{word}:\n" for depth, word in enumerate(sections))
    line = f"{nested}{'  ' * len(sections)}{name}: "
    assert load(f"{line}false\n").ignored == (key,)
    assert error_text(f"{line}3\n").startswith(f"{key}: expected true or false, got 3 (x.yaml:")
