"""Parser of VNN-LIB 1.0, the part of SMT-LIB in which VNN-COMP states properties.

Two patterns read what large files consist of, `(<= X_3 0.25)` or `(<= (* 2 X_3) 0.5)` and the
assert around it, in one step each; everything else goes token by token. Both build the same atoms.

Names: `X_i` and `Y_i` of the standard; `x_i`, `Xi` and the like where each index is declared once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.exact import Exact, divide, negate, to_rational
from complete_verifier.specification.formula import (
    FALSE,
    TRUE,
    And,
    Formula,
    InputBound,
    Or,
    OutputRow,
)
from complete_verifier.specification.linear import (
    COMPARISONS,
    Linear,
    compare,
    is_in_range,
    output_code,
)
from complete_verifier.specification.vnnlib_tokens import NUMBER, TokenReader, shorten

# Groups: operator, coefficient or None, variable, then a constant or another variable.
_ATOM = (
    rf"\s*\(\s*(<=|>=|<|>)\s+(?:\(\s*\*\s+({NUMBER})\s+)?([A-Za-z]\w*)(?(2)\s*\)|)\s+"
    rf"(?:({NUMBER})|([A-Za-z]\w*))\s*\)"
)
_SIMPLE_ATOM = re.compile(_ATOM, re.ASCII)
_SIMPLE_ASSERT = re.compile(rf"\s*\(\s*assert{_ATOM}\s*\)", re.ASCII)
_VARIABLE = re.compile(r"([XxYy])_?([0-9]{1,9})", re.ASCII)

_IGNORED_COMMANDS = frozenset(
    ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
)
_VERSION_2_COMMANDS = frozenset(("vnnlib-version", "declare-network"))
_MAX_DEPTH = 200
_ZERO = Decimal(0)


class VnnlibParser:
    """Reads declarations and hands each asserted formula to `on_assert`, in text order.

    After `parse`, `inputs` and `outputs` map each declared index to the offset of its declaration,
    and `mentions_outputs` says whether any formula names an output.
    """

    def __init__(self, text: str, source: str, on_assert: Callable[[Formula], None]) -> None:
        self._reader = TokenReader(text, source)
        self._on_assert = on_assert
        self._codes: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._difference_terms: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self.inputs: dict[int, int] = {}
        self.outputs: dict[int, int] = {}
        self.mentions_outputs = False

    def parse(self) -> None:
        """Read the whole text.

        Raises:
            SpecificationError: with line and column of the first thing that is wrong.
        """
        while True:
            atom = self._match_atom(_SIMPLE_ASSERT)
            if atom is not None:
                self._on_assert(atom)
            elif self._reader.peek():
                self._command()
            else:
                return

    def _command(self) -> None:
        reader = self._reader
        reader.expect("(", "at the start of a command")
        opening = reader.token_start
        name = reader.next("a command such as 'assert'")
        if name == "assert":
            formula = self._formula(depth=0)
            reader.expect(")", "after the asserted formula")
            self._on_assert(formula)
        elif name in ("declare-const", "declare-fun"):
            self._declaration(has_arguments=name == "declare-fun")
        elif name in _VERSION_2_COMMANDS:
            raise reader.error(
                "this file is in VNN-LIB 2.0, which is not supported; state the property in "
                "VNN-LIB 1.0 (declare-const X_i and Y_i)",
                opening,
            )
        elif name in _IGNORED_COMMANDS:
            reader.skip_to_close()
        else:
            raise reader.error(
                f"expected the command 'assert' or 'declare-const', got '{shorten(name)}'"
            )

    def _declaration(self, *, has_arguments: bool) -> None:
        reader = self._reader
        name = reader.next("a variable name")
        start = reader.token_start
        match = _VARIABLE.fullmatch(name)
        if match is None:
            raise reader.error(
                f"expected an input X_i or an output Y_i to be declared, got '{shorten(name)}'"
            )
        if has_arguments:
            reader.expect("(", "before the arguments of a declared function")
            reader.expect(")", "because X_i and Y_i take no arguments")
        sort = reader.next("the sort Real")
        if sort != "Real":
            raise reader.error(f"expected {name} to be declared Real, got '{shorten(sort)}'")
        reader.expect(")", "after the declaration")
        index = int(match.group(2))
        is_input = match.group(1) in "Xx"
        declared = self.inputs if is_input else self.outputs
        if index in declared:
            earlier = self._names[index if is_input else output_code(index)]
            raise reader.error(f"{name} is already declared, as {earlier}", start)
        declared[index] = start
        code = index if is_input else output_code(index)
        self._codes[name] = code
        self._names[code] = name

    def _match_atom(self, pattern: re.Pattern[str]) -> Formula | None:
        """Read the atom that `pattern` finds here, or move nowhere and return None."""
        match = pattern.match(self._reader.text, self._reader.position)
        atom = None if match is None else self._simple_atom(match)
        if match is not None and atom is not None:
            self._reader.position = match.end()
        return atom

    def _simple_atom(self, match: re.Match[str]) -> Formula | None:
        """Return the atom matched by `_ATOM`, or None where it needs the general path."""
        operator, factor, left, number, right = match.groups()
        code = self._codes.get(left)
        if code is None:
            raise self._undeclared(left, match.start(3))
        strict = len(operator) == 1
        is_upper = operator[0] == "<"
        if number is not None:
            value: Exact | None = self._reader.constant(number, match.start(4))
            if value is None:
                return None
            if factor is not None:
                coefficient = self._reader.constant(factor, match.start(2))
                if not coefficient:
                    return None
                value = divide(to_rational(value), to_rational(coefficient))
                if not is_in_range(value):
                    return None
                is_upper = is_upper == (coefficient > 0)
            if code >= 0:
                return InputBound(code, is_upper, value, strict)
            self.mentions_outputs = True
            terms = ((output_code(code), 1.0 if is_upper else -1.0),)
            return OutputRow(terms, value if is_upper else negate(value), strict)
        other = self._codes.get(right)
        if other is None:
            raise self._undeclared(right, match.start(5))
        if factor is not None or code >= 0 or other >= 0 or code == other:
            return None
        self.mentions_outputs = True
        pair = (code, other) if is_upper else (other, code)
        return OutputRow(self._difference(*pair), _ZERO, strict)

    def _difference(self, plus: int, minus: int) -> tuple[tuple[int, float], ...]:
        """Return the terms of output `plus` less output `minus`, one object per pair."""
        terms = self._difference_terms.get((plus, minus))
        if terms is None:
            terms = tuple(sorted(((output_code(plus), 1.0), (output_code(minus), -1.0))))
            self._difference_terms[plus, minus] = terms
        return terms

    def _undeclared(self, name: str, offset: int) -> SpecificationError:
        return self._reader.error(
            f"expected a constant or a declared variable, got '{shorten(name)}'; declare it first "
            f"with (declare-const {shorten(name)} Real)",
            offset,
        )

    def _formula(self, depth: int) -> Formula:
        atom = self._match_atom(_SIMPLE_ATOM)
        return self._bracketed(depth) if atom is None else atom

    def _bracketed(self, depth: int) -> Formula:
        reader = self._reader
        token = reader.next("a formula")
        start = reader.token_start
        if token != "(":
            return self._truth(token)
        self._check_depth(depth)
        if reader.peek() == "(":
            formula = self._formula(depth + 1)
            reader.expect(")", "to close the extra bracket around one formula")
            return formula
        head = reader.next("'and', 'or' or a comparison")
        if head in ("and", "or"):
            return self._operands(head, depth)
        if head in COMPARISONS:
            return self._comparison(head, start, depth)
        if head in ("true", "false"):
            reader.expect(")", f"after {head}")
            return self._truth(head)
        raise reader.error(
            f"expected 'and', 'or' or one of {', '.join(COMPARISONS)}, got '{shorten(head)}'"
        )

    def _truth(self, token: str) -> Formula:
        if token == "true":
            return TRUE
        if token == "false":
            return FALSE
        raise self._reader.error(f"expected a formula in brackets, got '{shorten(token)}'")

    def _check_depth(self, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            raise self._reader.error(f"brackets are nested more than {_MAX_DEPTH} deep")

    def _operands(self, head: str, depth: int) -> Formula:
        reader = self._reader
        children = []
        while True:
            atom = self._match_atom(_SIMPLE_ATOM)
            if atom is not None:
                children.append(atom)
            elif reader.peek() == ")":
                break
            else:
                children.append(self._bracketed(depth + 1))
        reader.expect(")", f"to close '{head}'")
        if not children:
            raise reader.error(f"expected at least one formula after '{head}', got none")
        if len(children) == 1:
            return children[0]
        return And(tuple(children)) if head == "and" else Or(tuple(children))

    def _comparison(self, operator: str, start: int, depth: int) -> Formula:
        terms = self._terms(operator, at_least=2, depth=depth)
        try:
            parts = tuple(
                compare(operator, left, right, self._names)
                for left, right in zip(terms, terms[1:], strict=False)
            )
        except ValueError as error:
            raise self._reader.error(str(error), start) from None
        return parts[0] if len(parts) == 1 else And(parts)

    def _terms(self, operator: str, at_least: int, depth: int) -> list[Linear]:
        """Read terms up to and with the closing bracket."""
        reader = self._reader
        terms = []
        while reader.peek() != ")":
            terms.append(self._term(depth + 1))
        reader.expect(")", f"to close '{operator}'")
        if len(terms) < at_least:
            raise reader.error(
                f"'{operator}' takes at least {at_least} operand{'s' if at_least > 1 else ''}, got "
                f"{len(terms)}; a constant or a variable is missing before this bracket"
            )
        return terms

    def _term(self, depth: int) -> Linear:
        reader = self._reader
        token = reader.next("a constant, a variable or a term in brackets")
        start = reader.token_start
        if token != "(":
            value = reader.constant(token, start)
            if value is not None:
                return Linear({}, value)
            code = self._codes.get(token)
            if code is None:
                raise self._undeclared(token, start)
            self.mentions_outputs = self.mentions_outputs or code < 0
            return Linear({code: 1})
        self._check_depth(depth)
        operator = reader.next("one of +, -, *, /")
        if operator not in ("+", "-", "*", "/"):
            return self._bracketed_term(depth, start)
        terms = self._terms(operator, at_least=2 if operator in "*/" else 1, depth=depth)
        return self._arithmetic(operator, terms, start)

    def _bracketed_term(self, depth: int, start: int) -> Linear:
        """Read `(term)`: the bracket at `start` only groups."""
        self._reader.position = start + 1
        term = self._term(depth + 1)
        self._reader.expect(")", "to close the extra bracket around one term")
        return term

    def _arithmetic(self, operator: str, terms: list[Linear], start: int) -> Linear:
        result, *others = terms
        if operator == "-" and not others:
            return result.times(-1)
        for other in others:
            if operator in "+-":
                result = result.plus(other, 1 if operator == "+" else -1)
            elif operator == "/":
                if other.coefficients or not other.constant:
                    raise self._reader.error("'/' needs a constant divisor other than 0", start)
                result = result.times(divide(1, other.constant))
            elif result.coefficients and other.coefficients:
                raise self._reader.error("this product of two variables is not linear", start)
            elif other.coefficients:
                result = other.times(result.constant)
            else:
                result = result.times(other.constant)
        return result
