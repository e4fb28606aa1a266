"""All that a file asserts, and the specification it amounts to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from complete_verifier.specification.box_builder import BoxBuilder, Narrowing
from complete_verifier.specification.clause import Clause
from complete_verifier.specification.clause_builder import ClauseBuilder
from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.formula import (
    And,
    Conjunction,
    Formula,
    InputBound,
    Or,
    OutputRow,
    conjunctions,
    num_conjunctions,
)
from complete_verifier.specification.specification import Specification

# About 1 kB each once built; a property beyond this is a mistake or needs another formulation.
MAX_CLAUSES = 1_000_000
# 18 bytes each: two float64 and two flags.
MAX_INTERVALS = 400_000_000

Unbounded = Callable[[int, str, int], SpecificationError]
"""(input, "lower" or "upper", clause number) -> the error that says so, with its place."""


class Asserted:
    """All asserts of a file: what holds everywhere, and the disjunctions still to be expanded."""

    def __init__(self) -> None:
        self.input_bounds: list[InputBound] = []
        self.output_rows: list[OutputRow] = []
        self.disjunctions: list[Or] = []

    def add(self, formula: Formula) -> None:
        """Conjoin `formula`."""
        if isinstance(formula, InputBound):
            self.input_bounds.append(formula)
        elif isinstance(formula, OutputRow):
            self.output_rows.append(formula)
        elif isinstance(formula, And):
            for child in formula.children:
                self.add(child)
        else:
            self.disjunctions.append(formula)

    def specification(
        self, num_inputs: int, num_outputs: int, source: str, unbounded: Unbounded | None
    ) -> Specification:
        """The property: a region per input box, with the clauses over it.

        Args:
            unbounded: None where inputs may lack bounds: such a region is a window
                (`Region.windowed`).

        Raises:
            SpecificationError: there are too many clauses or boxes, or what `unbounded` makes of
                an input without a bound.
        """
        boxes = BoxBuilder(num_inputs, self.input_bounds)
        clauses = ClauseBuilder(num_outputs, source)
        grouped: dict[Narrowing, list[Clause]] = {}
        windowed: set[Narrowing] = set()
        for number, conjunction in enumerate(self.expand(source), start=1):
            bounds = [atom for atom in conjunction if isinstance(atom, InputBound)]
            window = _missing(boxes, bounds, number, unbounded)
            rows = [atom for atom in conjunction if isinstance(atom, OutputRow)]
            clause = clauses.build([*self.output_rows, *rows])
            narrowing = boxes.narrow([*bounds, *window])
            grouped.setdefault(narrowing, []).append(clause)
            if window:
                windowed.add(narrowing)
        if not grouped:  # every disjunct is false: a box with nothing unsafe in it
            grouped[boxes.narrow(_missing(boxes, [], 1, unbounded))] = []
        _check_size(len(grouped) * num_inputs, source)
        return Specification(
            regions=tuple(
                boxes.region(narrowing, clauses, windowed=narrowing in windowed)
                for narrowing, clauses in grouped.items()
            ),
            source=source,
            num_inputs=num_inputs,
            num_outputs=num_outputs,
        )

    def expand(self, source: str) -> Iterator[Conjunction]:
        """Yield the conjunctions of atoms of all disjunctions together, in text order.

        Raises:
            SpecificationError: there are more than MAX_CLAUSES.
        """
        total = num_conjunctions(And(tuple(self.disjunctions)))
        if total > MAX_CLAUSES:
            raise SpecificationError(
                f"{source}: the disjunctions multiply to {total} clauses, at most {MAX_CLAUSES} "
                "are supported; split the property into several files"
            )
        if total == 0:
            return iter(())
        if len(self.disjunctions) == 1:
            return conjunctions(self.disjunctions[0])
        factors = (tuple(conjunctions(each)) for each in self.disjunctions)
        return (tuple(itertools.chain.from_iterable(c)) for c in itertools.product(*factors))


def _missing(
    boxes: BoxBuilder, bounds: list[InputBound], number: int, unbounded: Unbounded | None
) -> list[InputBound]:
    """The bounds of a window for the sides that have none; an error where they have to."""
    missing = boxes.missing(bounds)
    if missing is None:
        return []
    if unbounded is not None:
        raise unbounded(*missing, number)
    return boxes.window(bounds)


def _check_size(num_intervals: int, source: str) -> None:
    if num_intervals > MAX_INTERVALS:
        raise SpecificationError(
            f"{source}: the input boxes have {num_intervals} intervals together, at most "
            f"{MAX_INTERVALS} are supported; split the property into several files"
        )
