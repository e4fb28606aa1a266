"""Random formulas, evaluated directly and through the Specification, agree at random points.

Points and constants come from one small grid, so that equality, where strictness matters, is hit
often. A failure means that the normal form changes the question.
"""

from __future__ import annotations

import gzip
import itertools
import operator
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from complete_verifier.specification import Specification, parse_vnnlib, read_vnnlib

BENCHMARKS = Path(__file__).resolve().parents[4] / "shared" / "benchmarks"

GRID = (-1.0, -0.5, 0.0, 0.25, 0.5, 1.0)
OPERATORS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
Point = tuple[tuple[float, float], tuple[float, float]]
# The text of a formula and the predicate it denotes.
Meaning = tuple[str, Callable[[Point], bool]]


def linear(letter: str, indices: tuple[int, ...]) -> st.SearchStrategy[tuple[str, object]]:
    """Terms like 2 * X_0 - 0.5 over the given variables."""

    def build(coefficients: tuple[float, ...], constant: float) -> tuple[str, object]:
        parts = [f"(* {c} {letter}_{i})" for c, i in zip(coefficients, indices, strict=True)]
        kind = 0 if letter == "X" else 1

        def value(point: Point) -> Fraction:
            terms = zip(coefficients, indices, strict=True)
            return Fraction(constant) + sum(
                Fraction(c) * Fraction(point[kind][i]) for c, i in terms
            )

        return f"(+ {' '.join(parts)} {constant})", value

    coefficient = st.sampled_from([-2.0, -1.0, 1.0, 3.0])
    return st.builds(build, st.tuples(*[coefficient] * len(indices)), st.sampled_from(GRID))


@st.composite
def atoms(draw: st.DrawFn) -> Meaning:
    letter = draw(st.sampled_from("XY"))
    indices = draw(st.sampled_from([(0,), (1,)] if letter == "X" else [(0,), (1,), (0, 1)]))
    comparison = draw(st.sampled_from(sorted(OPERATORS)))
    compare = OPERATORS[comparison]
    if draw(st.booleans()):
        index = indices[0]
        constant = draw(st.sampled_from(GRID))
        kind = 0 if letter == "X" else 1
        return (
            f"({comparison} {letter}_{index} {constant})",
            lambda point: compare(Fraction(point[kind][index]), Fraction(constant)),
        )
    text, value = draw(linear(letter, indices))
    bound = draw(st.sampled_from(GRID))
    if draw(st.booleans()):
        return (
            f"({comparison} {text} {bound})",
            lambda point: compare(value(point), Fraction(bound)),  # type: ignore[operator]
        )
    return (
        f"({comparison} {bound} {text})",
        lambda point: compare(Fraction(bound), value(point)),  # type: ignore[operator]
    )


def connect(children: list[Meaning], name: str) -> Meaning:
    decide = all if name == "and" else any
    return (
        f"({name} {' '.join(text for text, _ in children)})",
        lambda point: decide(holds(point) for _, holds in children),
    )


FORMULAS = st.recursive(
    atoms(),
    lambda inner: st.builds(
        connect, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["and", "or"])
    ),
    max_leaves=8,
)


def is_counterexample(specification: Specification, point: Point) -> bool:
    x, y = (np.array(part, dtype=np.float32) for part in point)
    return any(
        region.contains_float32(x) and region.violated_by(y) for region in specification.regions
    )


@settings(max_examples=150, deadline=None)
@given(formulas=st.lists(FORMULAS, min_size=1, max_size=3))
def test_the_specification_means_the_formula(formulas: list[Meaning]) -> None:
    declarations = "".join(f"(declare-const {v} Real)" for v in ("X_0", "X_1", "Y_0", "Y_1"))
    box = "(assert (and (<= -0.5 X_0 1) (<= -1 X_1 0.5)))(assert (<= Y_0 1000))"
    text = declarations + box + "".join(f"(assert {text})" for text, _ in formulas)
    specification = parse_vnnlib(text, "random")
    for x in itertools.product(GRID, repeat=2):
        for y in itertools.product(GRID[::2], repeat=2):
            inside = -0.5 <= x[0] <= 1 and x[1] <= 0.5
            expected = inside and all(holds((x, y)) for _, holds in formulas)
            assert is_counterexample(specification, (x, y)) == expected, text


def test_a_property_with_two_input_boxes_becomes_two_regions() -> None:
    """The shape of ACAS Xu property 6: one input in either of two intervals, several outputs."""
    text = (
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(declare-const Y_1 Real)(declare-const Y_2 Real)"
        "(assert (or (and (<= X_1 0.5) (>= X_1 0.11)) (and (<= X_1 -0.11) (>= X_1 -0.5))))"
        "(assert (<= X_0 0.3))(assert (>= X_0 -0.1))"
        "(assert (or (and (<= Y_1 Y_0)) (and (<= Y_2 Y_0))))"
    )
    first, second = parse_vnnlib(text, "two").regions
    assert (first.upper[1], second.lower[1]) == (0.5, -0.5)
    assert len(first.clauses) == len(second.clauses) == 2
    np.testing.assert_array_equal(first.clauses[0].coefficients, [[-1, 1, 0]])


def benchmark_sample() -> list[Path]:
    """At most three files of each category, the shortest, the longest and one between."""
    sample: list[Path] = []
    for category in sorted(BENCHMARKS.glob("*/*/")):
        files = sorted(category.rglob("*.vnnlib.gz"), key=lambda path: path.stat().st_size)
        sample += sorted({files[0], files[len(files) // 2], files[-1]}) if files else []
    return sample


@pytest.mark.benchmarks
def test_benchmark_properties_are_read() -> None:
    sample = benchmark_sample()
    if not sample:
        pytest.skip(f"no VNN-COMP files at {BENCHMARKS}")
    for path in sample:
        specification = read_vnnlib(path)
        text = gzip.decompress(path.read_bytes()).decode()
        assert specification.num_inputs == text.count("(declare-const X_"), path
        assert specification.num_outputs == text.count("(declare-const Y_"), path
        assert specification.num_clauses >= 1, path
        assert not specification.is_empty, path
