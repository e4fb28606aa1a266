"""Data sets become statements: which input set, in which units, about which class.

A failure means that a proof is about another ball than the config's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from complete_verifier.config import Config, ConfigError, InputPaths
from complete_verifier.config.keys import with_values
from complete_verifier.data import DataError, load_examples
from complete_verifier.data.load import from_loader
from complete_verifier.extensions import Extensions
from complete_verifier.statements import read_examples, statements

DIGITS = {"data.dataset": "digits", "specification.epsilon": 0.1, "data.end": 2}


def stated(values: dict, place: Path = Path()) -> dict:
    config = with_values(Config(), values)
    paths = InputPaths(config_folders=(place,))
    examples = read_examples(config, paths, Extensions())
    return statements(config, paths, examples)


def test_the_bundled_digits_are_scikit_learns() -> None:
    from digits_networks import load_data

    examples, data = load_examples("digits", []), load_data(0)
    ours = np.stack([examples.input(index).reshape(-1) for index in range(200)])
    np.testing.assert_array_equal(ours, data.test_images[:200].double().numpy())
    np.testing.assert_array_equal(examples.labels, data.test_labels[:200].numpy())


def test_epsilon_counts_before_normalisation_and_so_do_the_limits() -> None:
    plain = stated(DIGITS)[1]
    normal = stated({**DIGITS, "data.mean": 0.5, "data.std": 0.25})[1]
    for side in ("lower", "upper"):
        expected = (getattr(plain.region, side) - 0.5) / 0.25
        np.testing.assert_allclose(getattr(normal.region, side), expected, rtol=0, atol=1e-15)
    assert plain.region.lower.min() == 0 and plain.region.upper.max() == 1
    assert plain.source == "digits[1] linf eps 0.1 verified-acc"
    assert plain.label == int(load_examples("digits", []).labels[1])


def test_an_l2_ball_counts_before_normalisation() -> None:
    values = {**DIGITS, "data.std": 0.25, "specification.norm": 2.0}
    (first, _) = stated(values).values()
    ball = first.region.ball
    assert ball is not None and ball.radius == 0.1
    np.testing.assert_array_equal(ball.weights, 0.25)
    step = np.zeros(64)
    step[0] = 0.1 / 0.25
    assert ball.contains(ball.center + 0.999 * step)
    assert not ball.contains(ball.center + 1.001 * step)


def test_mean_and_std_per_channel(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).random((2, 3, 2, 2))
    save(tmp_path / "set", inputs=inputs, labels=np.array([1, 0]))
    values = {"data.dataset": "set", "specification.epsilon": 0.5}
    values |= {"data.mean": (0.1, 0.2, 0.3), "data.std": (1.0, 2.0, 4.0)}
    statement = stated(values, tmp_path)[0]
    mean, std = np.repeat([0.1, 0.2, 0.3], 4), np.repeat([1.0, 2.0, 4.0], 4)
    np.testing.assert_array_equal(statement.center, (inputs[0].reshape(-1) - mean) / std)
    np.testing.assert_array_equal(statement.region.upper, statement.center + 0.5 / std)
    assert statement.shape == (3, 2, 2)


def save(folder: Path, **arrays: np.ndarray) -> None:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def test_bytes_are_pixels_between_zero_and_one(tmp_path: Path) -> None:
    save(tmp_path / "set", inputs=np.array([[0, 51, 255]], dtype=np.uint8), labels=np.array([0]))
    statement = stated({"data.dataset": "set", "specification.epsilon": 0.3}, tmp_path)[0]
    np.testing.assert_array_equal(statement.center, [0, 0.2, 1])
    np.testing.assert_array_equal(statement.region.upper, [0.3, 0.5, 1])


def test_a_box_per_example(tmp_path: Path) -> None:
    save(
        tmp_path / "set",
        inputs=np.zeros((2, 2)),
        labels=np.array([0, 1]),
        lower=np.array([[-1.0, -2.0], [-3.0, -4.0]]),
        upper=np.ones((2, 2)),
    )
    values = {"data.dataset": "set", "specification.type": "box"}
    statement = stated(values, tmp_path)[1]
    np.testing.assert_array_equal(statement.region.lower, [-3, -4])
    np.testing.assert_array_equal(statement.region.upper, [1, 1])
    with pytest.raises(ConfigError, match="specification.epsilon: expected a radius"):
        stated({"data.dataset": "set"}, tmp_path)


def test_a_loader_of_ones_own_gives_what_the_network_reads() -> None:
    asked = []

    def loader(eps: float | None) -> tuple:
        asked.append(eps)
        inputs = np.arange(8.0).reshape(2, 4)
        return inputs, np.array([2, 3]), np.full((1, 4), 9.0), None, np.full((1, 4), 0.5), [1, 0]

    examples = from_loader("mine", loader, 0.25)
    config = with_values(Config(), {"data.mean": 7.0, "data.dataset": "mine"})
    statement = statements(config, InputPaths(), examples)[1]
    assert asked == [0.25]
    np.testing.assert_array_equal(statement.region.lower, [3.5, 4.5, 5.5, 6.5])
    assert (statement.label, statement.targets) == (3, (0,))
    with pytest.raises(DataError, match="mine: expected inputs, labels, highest"):
        from_loader("mine", lambda eps: (1, 2), None)
    with pytest.raises(DataError, match="mine fails: ZeroDivisionError"):
        from_loader("mine", lambda eps: 1 / 0, None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"data.start": 3, "data.end": 5}, [3, 4]),
        ({"data.select_instance": (7, 2)}, [7, 2]),
    ],
)
def test_which_examples_are_asked_about(values: dict, expected: list[int]) -> None:
    assert list(stated({**DIGITS, **values})) == expected


def test_a_file_lists_the_examples(tmp_path: Path) -> None:
    (tmp_path / "chosen.txt").write_text("5\n3, 9\n")
    values = {**DIGITS, "data.data_idx_file": "chosen.txt"}
    assert list(stated(values, tmp_path)) == [5, 3]


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"data.select_instance": (200,)}, ConfigError, "between 0 and 199 of digits, got 200"),
        ({"data.start": 500, "data.end": 600}, ConfigError, "of digits, got none"),
        ({"data.mean": (0.1, 0.2)}, ConfigError, "one for each of 1 channels, got 2"),
        ({"data.dataset": "MNIST"}, DataError, "digits needs no files"),
        ({"data.dataset": "CIFAR_SDP"}, DataError, "'CIFAR_SDP' is none of MNIST, CIFAR"),
        ({"data.dataset": 'Customized("a", "b")'}, ConfigError, "module a was not allowed to run"),
    ],
)
def test_what_is_not_there_is_refused(
    values: dict, error: type, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        stated({**DIGITS, **values})


def test_a_pickled_array_is_not_opened(tmp_path: Path) -> None:
    save(tmp_path / "set", labels=np.array([0]))
    np.save(tmp_path / "set" / "inputs.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(DataError, match=r"inputs.npy: expected an array in .npy form"):
        stated({"data.dataset": "set", "specification.epsilon": 0.1}, tmp_path)


def test_the_number_of_classes_is_checked_where_it_is_given() -> None:
    statement = replace(stated(DIGITS)[0], num_outputs=3)
    with pytest.raises(Exception, match="data.num_outputs is 3, but the network has 10 outputs"):
        statement.for_network(10, lambda point: point)
