"""Read a VNN-LIB 1.0 file into a Specification.

A file states the negation of the property: a formula over inputs and outputs that a counterexample
satisfies. All asserts hold together. The formula becomes a disjunction of conjunctions; each of
these has an input box (bounds asserted for all, narrowed by its own) and a clause of output rows;
conjunctions over one box share a Region.

Boundaries. Strict inequalities are kept: a point on an open side is no counterexample, while the
closed box and the closed rows, which contain the strict ones, are what a proof covers.
Empty input sets are read (`Specification.is_empty`), because ``unsat`` is their right answer.
A file that asserts nothing about the outputs is refused: every input would be a counterexample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from complete_verifier.specification.box_builder import BoxBuilder, Narrowing
from complete_verifier.specification.clause import Clause
from complete_verifier.specification.clause_builder import ClauseBuilder
from complete_verifier.specification.errors import SpecificationError, error_at
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
from complete_verifier.specification.source_file import read_text
from complete_verifier.specification.specification import Specification
from complete_verifier.specification.vnnlib_parser import VnnlibParser

# About 1 kB each once built; a property beyond this is a mistake or needs another formulation.
MAX_CLAUSES = 1_000_000
# 18 bytes each: two float64 and two flags.
MAX_INTERVALS = 400_000_000


def read_vnnlib(path: Path | str) -> Specification:
    """Read the property in file `path`; `path` + ".gz" serves where `path` is absent.

    Raises:
        SpecificationError: no such file, or what `parse_vnnlib` refuses.
    """
    return parse_vnnlib(read_text(Path(path)), str(path))


def parse_vnnlib(text: str, source: str) -> Specification:
    """Return the property that `text` states; `source` names it in messages.

    Raises:
        SpecificationError: "source:line:column: ..." where the text is not VNN-LIB 1.0, or states
            something that a box and linear output rows cannot hold exactly; "source: ..." where an
            input has no bound, no output is constrained, or there are too many clauses.
    """
    asserted = _Asserted()
    parser = VnnlibParser(text, source, asserted.add)
    parser.parse()
    num_inputs = _count(parser.inputs, "X", text, source)
    num_outputs = _count(parser.outputs, "Y", text, source)
    if not parser.mentions_outputs:
        raise SpecificationError(
            f"{source}: expected a constraint on the outputs, got none; every input would be a "
            "counterexample"
        )
    boxes = BoxBuilder(num_inputs, asserted.input_bounds)
    clauses = ClauseBuilder(num_outputs, source)
    grouped: dict[Narrowing, list[Clause]] = {}
    for number, conjunction in enumerate(asserted.expand(source), start=1):
        bounds = [atom for atom in conjunction if isinstance(atom, InputBound)]
        _check_bounded(boxes, bounds, number, parser.inputs, text, source)
        rows = [atom for atom in conjunction if isinstance(atom, OutputRow)]
        clause = clauses.build([*asserted.output_rows, *rows])
        grouped.setdefault(boxes.narrow(bounds), []).append(clause)
    if not grouped:  # every disjunct is false: a box with nothing unsafe in it
        _check_bounded(boxes, [], 1, parser.inputs, text, source)
        grouped[boxes.narrow([])] = []
    _check_size(len(grouped) * num_inputs, source)
    return Specification(
        regions=tuple(boxes.region(narrowing, grouped[narrowing]) for narrowing in grouped),
        source=source,
        num_inputs=num_inputs,
        num_outputs=num_outputs,
    )


def _count(declared: dict[int, int], letter: str, text: str, source: str) -> int:
    """Return how many variables are declared, all of index 0, 1, …, without a gap."""
    if not declared:
        raise SpecificationError(f"{source}: expected {letter}_0 to be declared, got no {letter}_i")
    last = max(declared)
    if last != len(declared) - 1:
        missing = next(index for index in range(last) if index not in declared)
        raise error_at(
            source,
            text,
            declared[last],
            f"{letter}_{last} is declared but {letter}_{missing} is not; declare every index",
        )
    return len(declared)


def _check_bounded(
    boxes: BoxBuilder,
    bounds: list[InputBound],
    number: int,
    declared: dict[int, int],
    text: str,
    source: str,
) -> None:
    missing = boxes.missing(bounds)
    if missing is not None:
        index, side = missing
        raise error_at(
            source,
            text,
            declared[index],
            f"input X_{index} has no {side} bound in clause {number} of the property; assert one",
        )


def _check_size(num_intervals: int, source: str) -> None:
    if num_intervals > MAX_INTERVALS:
        raise SpecificationError(
            f"{source}: the input boxes have {num_intervals} intervals together, at most "
            f"{MAX_INTERVALS} are supported; split the property into several files"
        )


class _Asserted:
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
