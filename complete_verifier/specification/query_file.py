"""Read a VNN-LIB 2.0 query: declared networks, and asserts over their inputs and outputs.

The package `vnnlib` parses the text and checks its types; numbers are taken from their digits, so
nothing is rounded on the way. A query asks whether its asserts can hold together.

Several inputs are one vector, each flattened, in the order in which they are declared; likewise
several outputs. What a box of inputs and linear rows of outputs cannot state is refused by name:
several networks, hidden nodes, relations between inputs, and products of variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from complete_verifier.specification.asserted import Asserted
from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.exact import Rational, to_rational
from complete_verifier.specification.formula import And, Formula, Or
from complete_verifier.specification.linear import Linear, compare, output_code
from complete_verifier.specification.source_file import read_text
from complete_verifier.specification.specification import Specification

# Of the types in which a network here may be asked about.
ELEMENT_TYPES = {"Real": "real", "F32": "float32"}
# An output may also be a whole number, which is a real one.
_OUTPUT_TYPES = {**ELEMENT_TYPES, "I32": "int32", "I64": "int64"}

_OPERATORS = {
    "LessEqual": "<=",
    "GreaterEqual": ">=",
    "LessThan": "<",
    "GreaterThan": ">",
    "Equal": "=",
}
_MAX_DEPTH = 200


@dataclass(frozen=True)
class Declared:
    """One declared variable, an input or an output of the network.

    Attributes:
        onnx_name: what the model's file calls it; "" where the query does not say.
        first: where its elements begin among those of all inputs, or all outputs.
    """

    name: str
    element_type: str
    shape: tuple[int, ...]
    onnx_name: str = ""
    first: int = 0

    @property
    def size(self) -> int:
        """Number of its elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, eq=False)
class QueryFile:
    """A query about one network."""

    network: str
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    specification: Specification


def read_query_file(path: Path) -> QueryFile:
    """Read the query in `path`; `path` + ".gz" serves where `path` is absent.

    Raises:
        SpecificationError: no such file, no VNN-LIB 2.0, or something that is refused (see above);
            the package `vnnlib` is not installed.
    """
    return parse_query(read_text(Path(path)), str(path))


def parse_query(text: str, source: str) -> QueryFile:
    """Return the query that `text` states; `source` names it in messages.

    Raises:
        SpecificationError: as for `read_query_file`.
    """
    query = _parsed(text, source)
    if len(query.networks) != 1:
        raise SpecificationError(
            f"{source}: it declares {len(query.networks)} networks; queries about one network are "
            "supported"
        )
    network = query.networks[0]
    if network.hidden:
        raise SpecificationError(
            f"{source}: the network {network.name} declares the hidden node "
            f"{network.hidden[0].name}; hidden nodes are not supported"
        )
    inputs = _declared(network.inputs, ELEMENT_TYPES, source)
    outputs = _declared(network.outputs, _OUTPUT_TYPES, source)
    reader = _Reader(source, inputs, outputs)
    asserted = Asserted()
    for assertion in query.assertions:
        asserted.add(reader.formula(assertion.expr))
    # The standard lets inputs be unbounded; they are searched, and nothing is proven of them.
    num_inputs, num_outputs = (sum(one.size for one in side) for side in (inputs, outputs))
    specification = asserted.specification(num_inputs, num_outputs, source, None)
    return QueryFile(str(network.name), inputs, outputs, specification)


def _parsed(text: str, source: str) -> Any:
    try:
        import vnnlib
    except ImportError as error:
        raise SpecificationError(
            f"{source}: VNN-LIB 2.0 is read with the package vnnlib. Install it: pip install vnnlib"
        ) from error
    try:
        return vnnlib.parse_query_string(text)
    except vnnlib.VNNLibException as error:
        raise SpecificationError(f"{source}{_explained(str(error))}") from None


def _explained(message: str) -> str:
    """The parser's message as ``:line: text``; its first error where it reports several as JSON."""
    try:
        first = json.loads(message)["errors"][0]
        return f":{first['line']}: {first['message']} ({first['offendingSymbol']}): {first['hint']}"
    except (ValueError, KeyError, IndexError, TypeError):
        return f": {' '.join(message.split())}"


def _declared(variables: Any, types: Mapping[str, str], source: str) -> tuple[Declared, ...]:
    found, first = [], 0
    for variable in variables:
        kind = types.get(variable.dtype.name)
        if kind is None:
            raise SpecificationError(
                f"{source}: {variable.name} is declared with an element type that is not "
                f"supported; supported are {', '.join(types.values())}"
            )
        shape = tuple(int(size) for size in variable.shape)
        found.append(Declared(variable.name, kind, shape, variable.onnx_name or "", first))
        first += found[-1].size
    return tuple(found)


class _Reader:
    """Turns the parser's nodes into formulas over the network's inputs and outputs."""

    def __init__(
        self, source: str, inputs: tuple[Declared, ...], outputs: tuple[Declared, ...]
    ) -> None:
        self._source = source
        self._inputs = {declared.name: declared for declared in inputs}
        self._outputs = {declared.name: declared for declared in outputs}
        self._names: dict[int, str] = {}

    def formula(self, node: Any, depth: int = 0) -> Formula:
        """The formula of a boolean node."""
        self._check_depth(depth)
        kind = type(node).__name__
        if kind in ("And", "Or"):
            children = tuple(self.formula(child, depth + 1) for child in node.args)
            return And(children) if kind == "And" else Or(children)
        if kind == "NotEqual":
            return Or(tuple(self._compared(sign, node, depth) for sign in ("<", ">")))
        if kind in _OPERATORS:
            return self._compared(_OPERATORS[kind], node, depth)
        raise SpecificationError(f"{self._source}: {kind} is not supported in an assert")

    def _compared(self, operator: str, node: Any, depth: int) -> Formula:
        left, right = self._linear(node.lhs, depth + 1), self._linear(node.rhs, depth + 1)
        try:
            return compare(operator, left, right, self._names)
        except ValueError as error:
            raise SpecificationError(f"{self._source}: {node}: {error}") from None

    def _linear(self, node: Any, depth: int) -> Linear:
        self._check_depth(depth)
        kind = type(node).__name__
        if kind == "Var":
            return Linear({self._code(node): 1})
        if kind == "Negate":
            return self._linear(node.expr, depth + 1).times(-1)
        if kind == "Plus":
            total = Linear({})
            for part in node.args:
                total = total.plus(self._linear(part, depth + 1))
            return total
        if kind == "Minus":
            total = self._linear(node.head, depth + 1)
            for part in node.rest:
                total = total.plus(self._linear(part, depth + 1), -1)
            return total
        if kind == "Multiply":
            return self._product(node, depth)
        return Linear({}, self._number(node))

    def _product(self, node: Any, depth: int) -> Linear:
        result = Linear({}, 1)
        for part in node.args:
            factor = self._linear(part, depth + 1)
            if result.coefficients and factor.coefficients:
                raise SpecificationError(
                    f"{self._source}: {node} multiplies variables; only linear constraints are "
                    "supported"
                )
            if factor.coefficients:
                result, factor = factor, result
            result = result.times(factor.constant)
        return result

    def _number(self, node: Any) -> Rational:
        try:
            value = Decimal(str(node.lexeme))
            if not value.is_finite():
                raise InvalidOperation
        except (InvalidOperation, AttributeError):
            raise SpecificationError(f"{self._source}: {node} is no number") from None
        return to_rational(value)

    def _code(self, node: Any) -> int:
        """The variable's number: inputs from 0 on, outputs below, elements in row-major order."""
        is_input = node.name in self._inputs
        declared = (self._inputs if is_input else self._outputs)[node.name]
        position = 0
        for index, extent in zip(node.indices, declared.shape, strict=True):
            position = position * extent + int(index)
        position += declared.first
        code = position if is_input else output_code(position)
        self._names[code] = str(node)
        return code

    def _check_depth(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise SpecificationError(
                f"{self._source}: brackets are nested more than {_MAX_DEPTH} deep"
            )
