"""Formulas over input bounds and output rows, and their disjunctive normal form.

Only what a region can hold exactly becomes an atom; a reader refuses everything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from complete_verifier.specification.exact import Exact


class InputBound(NamedTuple):
    """One side of one input: x <= value if `is_upper`, else x >= value; < or > if `strict`."""

    input_index: int
    is_upper: bool
    value: Exact
    strict: bool


class OutputRow(NamedTuple):
    """``sum(c * y[j] for j, c in terms) <= bound``, or ``<`` if `strict`; coefficients exact."""

    terms: tuple[tuple[int, float], ...]
    bound: Exact
    strict: bool


class And(NamedTuple):
    """All children hold. Without children: true."""

    children: tuple[Formula, ...]


class Or(NamedTuple):
    """Some child holds. Without children: false."""

    children: tuple[Formula, ...]


Formula = InputBound | OutputRow | And | Or
Conjunction = tuple[InputBound | OutputRow, ...]

TRUE = And(())
FALSE = Or(())


def num_conjunctions(formula: Formula) -> int:
    """Return how many conjunctions `conjunctions` would yield, without expanding anything."""
    if isinstance(formula, And):
        product = 1
        for child in formula.children:
            product *= num_conjunctions(child)
        return product
    if isinstance(formula, Or):
        return sum(num_conjunctions(child) for child in formula.children)
    return 1


def conjunctions(formula: Formula) -> Iterator[Conjunction]:
    """Yield conjunctions of atoms whose disjunction is equivalent to `formula`, in text order."""
    if isinstance(formula, Or):
        for child in formula.children:
            yield from conjunctions(child)
    elif isinstance(formula, And):
        if all(isinstance(child, InputBound | OutputRow) for child in formula.children):
            yield formula.children  # type: ignore[misc]
            return
        if not num_conjunctions(formula):
            return  # a false child: do not expand the others, which may be many
        for choice in itertools.product(*(tuple(conjunctions(c)) for c in formula.children)):
            yield tuple(itertools.chain.from_iterable(choice))
    else:
        yield (formula,)
