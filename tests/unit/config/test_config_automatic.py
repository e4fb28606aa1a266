"""`complete_verifier: auto` chooses for networks of few inputs, and never over what was given."""

from __future__ import annotations

from complete_verifier.config import Config, automatic
from complete_verifier.config.keys import flatten, with_values

AUTO = with_values(Config(), {"general.complete_verifier": "auto"})


def test_few_inputs_are_split_with_forward_bounds() -> None:
    config, notes = automatic(AUTO, {}, 5)
    values = flatten(config)
    assert values["solver.bound_prop_method"] == "forward+crown"
    assert values["bab.branching.method"] == "sb"
    assert {note.key for note in notes} == {
        key for key, value in values.items() if value != flatten(AUTO)[key]
    }


def test_what_was_given_stays() -> None:
    given = {"solver.bound_prop_method": "x.yaml:3", "solver.batch_size": "--batch_size"}
    config, notes = automatic(AUTO, given, 5)
    assert config.solver.bound_prop_method == AUTO.solver.bound_prop_method
    assert config.solver.init_bound_prop_method == AUTO.solver.init_bound_prop_method
    assert config.solver.batch_size == AUTO.solver.batch_size
    assert config.bab.branching.method == "sb"
    assert not {note.key for note in notes} & set(given)


def test_many_inputs_and_other_verifiers_are_left_alone() -> None:
    assert automatic(AUTO, {}, 784) == (AUTO, ())
    assert automatic(Config(), {}, 5) == (Config(), ())
