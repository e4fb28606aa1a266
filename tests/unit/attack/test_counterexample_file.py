"""Saved counterexamples can be read back and replayed, bit for bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from complete_verifier.attack.counterexample import Counterexample, confirm
from complete_verifier.attack.save import (
    counterexample_path,
    format_counterexample,
    read_counterexample,
    write_counterexample,
)
from complete_verifier.attack.search import attack_specification
from complete_verifier.attack.settings import AttackSettings
from complete_verifier.model.replay import run_onnx
from complete_verifier.results.errors import ResultError
from complete_verifier.specification import Specification

_FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def test_the_text_is_the_form_of_vnncomp() -> None:
    found = Counterexample(np.float32([0.25, 0.03]), np.float32([-1.5]))
    assert format_counterexample(found) == (
        "((X_0 0.25)\n(X_1 0.029999999329447746)\n(Y_0 -1.5))\n"
    )


@settings(max_examples=50, deadline=None)
@given(inputs=_FLOATS, outputs=_FLOATS)
def test_every_float32_survives_the_file(tmp_path_factory, inputs, outputs) -> None:
    path = tmp_path_factory.mktemp("cex") / "cex.txt"
    found = Counterexample(np.float32(inputs), np.float32(outputs))
    write_counterexample(path, found)
    saved = read_counterexample(path)
    assert saved.inputs.tobytes() == found.inputs.tobytes()
    assert saved.outputs.tobytes() == found.outputs.tobytes()


def test_the_decimal_written_for_the_end_of_a_box_lies_in_the_box() -> None:
    """`0.03`, the shortest text for this float32, lies above a box that ends at the float32."""
    upper = np.float32(0.03)
    text = format_counterexample(Counterexample(np.array([upper]), np.float32([0.0])))
    decimal = text.split()[1].rstrip(")")
    assert Fraction(decimal) <= Fraction("0.029999999329447746")
    assert Fraction("0.03") > Fraction(float(upper))


def test_instances_of_a_batch_have_their_own_files() -> None:
    paths = {str(counterexample_path("out/cex.txt", number, batch=True)) for number in range(3)}
    assert paths == {"out/cex_0.txt", "out/cex_1.txt", "out/cex_2.txt"}
    assert str(counterexample_path("out/cex.txt", 7, batch=False)) == "out/cex.txt"


def test_several_violated_instances_leave_one_replayable_file_each(build, tmp_path) -> None:
    """Field case 35, as the entry point does it: attack, confirm, save; then only the files."""
    network = build.random_mlp([4, 12, 3], seed=5)
    onnx_path = network.save(tmp_path / "net.onnx")
    lows = (-1.0, -0.5, 0.0)
    regions = [
        build.region(
            [low] * 4, [low + 1] * 4, ([[1.0, -1.0, 0.0]], [0.0]), ([[-1.0, 1.0, 0.0]], [0.0])
        )
        for low in lows
    ]
    for number, region in enumerate(regions):
        result = attack_specification(
            network.forward,
            Specification((region,), "test", 4, 3),
            AttackSettings(),
            seed=number,
            confirm=lambda region, x: confirm(onnx_path, region, x, run_onnx),
        )
        assert result.counterexample is not None
        path = counterexample_path(tmp_path / "cex.txt", number, batch=True)
        write_counterexample(path, result.counterexample)
    saved = [read_counterexample(tmp_path / f"cex_{number}.txt") for number in range(3)]
    for region, numbers in zip(regions, saved, strict=True):
        assert confirm(onnx_path, region, numbers.inputs, run_onnx) is not None
        assert np.array_equal(run_onnx(onnx_path, numbers.inputs), numbers.outputs)
    assert len({numbers.inputs.tobytes() for numbers in saved}) == 3


def test_a_results_file_that_starts_with_the_verdict_is_read_too(tmp_path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("sat\n((X_0 1e-3)\n (X_1 -2)\n (Y_0 0.5))\n")
    saved = read_counterexample(path)
    assert saved.inputs.tolist() == [float(np.float32(1e-3)), -2.0]
    assert saved.outputs.tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("((X_0 1.0)\n(X_2 1.0)\n(Y_0 1.0))", r"expected an entry \(X_1 value\), got none"),
        ("((X_0 1.0))", r"expected an entry \(Y_0 value\), got none"),
        ("((X_0 1.0)\n(X_0 2.0)\n(Y_0 1.0))", r"X_0 is given twice"),
        ("((X_0 one)\n(Y_0 1.0))", r"expected a number for X_0, got 'one'"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, text, message) -> None:
    path = tmp_path / "cex.txt"
    path.write_text(text)
    with pytest.raises(ResultError, match=message):
        read_counterexample(path)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(ResultError, match=r"cex\.txt: cannot read the counterexample"):
        read_counterexample(tmp_path / "cex.txt")
