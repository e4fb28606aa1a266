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

from pathlib import Path

from complete_verifier.specification.asserted import Asserted
from complete_verifier.specification.errors import SpecificationError, error_at
from complete_verifier.specification.source_file import read_text
from complete_verifier.specification.specification import Specification
from complete_verifier.specification.vnnlib_parser import VnnlibParser


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
    asserted = Asserted()
    parser = VnnlibParser(text, source, asserted.add)
    parser.parse()
    num_inputs = _count(parser.inputs, "X", text, source)
    num_outputs = _count(parser.outputs, "Y", text, source)
    if not parser.mentions_outputs:
        raise SpecificationError(
            f"{source}: expected a constraint on the outputs, got none; every input would be a "
            "counterexample"
        )

    def unbounded(index: int, side: str, number: int) -> SpecificationError:
        place = parser.inputs[index]
        what = f"input X_{index} has no {side} bound in clause {number} of the property; assert one"
        return error_at(source, text, place, what)

    return asserted.specification(num_inputs, num_outputs, source, unbounded)


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
