"""Comparisons, truth values, choices and casts, by 0 and 1: Greater, Equal, And, Where, Cast, ...

A truth value is the number 0 or 1, and a whole number is a real one. One operator has a jump,
``Greater``; another, ``Floor``, makes whole numbers. Everything else is arithmetic with these:

    a <= b   is  1 - (a > b)                    a == b   is  1 - (a > b) - (b > a)
    p and q  is  p q                            where(c, a, b)  is  c a + (1 - c) b

`Kind` says which values are which, so that nothing takes a whole number for a real one where that
makes a difference (a quotient of whole numbers is rounded).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import numpy as np
from onnx import NodeProto, TensorProto, helper

from complete_verifier.model.composed import Composer, UnsupportedFormError


class Kind(Enum):
    """What a computed value is; a value of none is real."""

    TRUTH = auto()
    WHOLE = auto()


class Chooser(Composer, Protocol):
    """What these rewrites need of the graph under construction."""

    kinds: dict[str, Kind]


MOVING = frozenset(
    "Reshape Flatten Squeeze Unsqueeze Transpose Gather Slice Split Expand Tile".split()
)
"""Operators that leave the values of their first operand what they are."""

_WHOLE_ARITHMETIC = frozenset({"Add", "Sub", "Mul"})
_LARGEST_EXACT = 2**24
_WHOLE_TYPES = (TensorProto.INT32, TensorProto.INT64)


def keep_kinds(graph: Chooser, node: NodeProto) -> None:
    """Say of what kind a kept node's outputs are, where it takes truth values or whole numbers.

    Raises:
        UnsupportedFormError: it may mean something else of those than of real numbers.
    """
    kinds = {graph.kinds[name] for name in node.input if name in graph.kinds}
    if not kinds:
        return
    if node.op_type in MOVING:  # an index that depends on the input is refused later, as such
        if node.input[0] in graph.kinds:
            graph.kinds |= dict.fromkeys(node.output, graph.kinds[node.input[0]])
    elif node.op_type in _WHOLE_ARITHMETIC and kinds == {Kind.WHOLE}:
        node.input[:] = [_real(graph, name) for name in node.input]
        graph.kinds[node.output[0]] = Kind.WHOLE
    elif node.op_type == "Concat" and len(kinds) == 1 and set(node.input) <= set(graph.kinds):
        graph.kinds[node.output[0]] = kinds.pop()
    else:
        raise UnsupportedFormError("an operand is a truth value or a whole number")


def _real(graph: Chooser, name: str) -> str:
    """The value as a real number: a constant is converted, and must not be rounded by it."""
    content = graph.constants.get(name)
    if content is None or content.dtype == np.float32:
        return name
    converted = content.astype(np.float32)
    if content.dtype.kind in "iu" and content.size and np.abs(content).max() > _LARGEST_EXACT:
        raise UnsupportedFormError("a constant is a whole number beyond 2^24")
    if content.dtype.kind == "f" and not np.array_equal(converted.astype(content.dtype), content):
        raise UnsupportedFormError("a constant is no float32")
    return graph.constant(f"{name}/real", converted)


def _number(graph: Chooser, name: str, value: float) -> str:
    return graph.constant(name, np.array(value, dtype=np.float32))


def _one_minus(graph: Chooser, value: str, output: str) -> None:
    graph.emit("Sub", [_number(graph, f"{output}/one", 1.0), value], output)


def _greater(graph: Chooser, left: str, right: str, output: str) -> None:
    graph.emit("Greater", [left, right], f"{output}/holds")
    graph.emit("Cast", [f"{output}/holds"], output, to=TensorProto.FLOAT)


def _either(graph: Chooser, left: str, right: str, output: str) -> None:
    """1 where one is greater than the other, 0 where they are equal."""
    _greater(graph, left, right, f"{output}/above")
    _greater(graph, right, left, f"{output}/below")
    graph.emit("Add", [f"{output}/above", f"{output}/below"], output)


def _compared(graph: Chooser, node: NodeProto) -> None:
    left, right = (_real(graph, name) for name in node.input)
    output = node.output[0]
    graph.kinds[output] = Kind.TRUTH
    if node.op_type in ("Less", "GreaterOrEqual"):
        left, right = right, left
    if node.op_type in ("Greater", "Less"):
        _greater(graph, left, right, output)
        return
    if node.op_type == "Equal":
        _either(graph, left, right, f"{output}/differ")
    else:
        _greater(graph, left, right, f"{output}/differ")
    _one_minus(graph, f"{output}/differ", output)


def _sign(graph: Chooser, node: NodeProto) -> None:
    value, output = node.input[0], node.output[0]
    zero = _number(graph, f"{output}/zero", 0.0)
    _greater(graph, value, zero, f"{output}/above")
    _greater(graph, zero, value, f"{output}/below")
    graph.emit("Sub", [f"{output}/above", f"{output}/below"], output)


def _logic(graph: Chooser, node: NodeProto) -> None:
    """Not, And, Or (``p + q - p q``) and Xor (``p + q - 2 p q``)."""
    output = node.output[0]
    graph.kinds[output] = Kind.TRUTH
    operands = [_real(graph, name) for name in node.input]
    if node.op_type == "Not":
        _one_minus(graph, operands[0], output)
    elif node.op_type == "And":
        graph.emit("Mul", operands, output)
    else:
        graph.emit("Mul", operands, f"{output}/both")
        graph.emit("Add", operands, f"{output}/sum")
        factor = _number(graph, f"{output}/factor", 1.0 if node.op_type == "Or" else 2.0)
        graph.emit("Mul", [f"{output}/both", factor], f"{output}/less")
        graph.emit("Sub", [f"{output}/sum", f"{output}/less"], output)


def _where(graph: Chooser, node: NodeProto) -> None:
    condition, output = node.input[0], node.output[0]
    kinds = {graph.kinds.get(name) for name in node.input[1:] if name not in graph.constants}
    if len(kinds) > 1:
        raise UnsupportedFormError("one choice is a whole number and the other is none")
    if kinds and (kind := kinds.pop()) is not None:
        graph.kinds[output] = kind
    chosen = graph.constants.get(condition)
    if chosen is None:
        _one_minus(graph, condition, f"{output}/not")
        shares = [condition, f"{output}/not"]
    else:
        masks = (chosen.astype(np.float32), 1 - chosen.astype(np.float32))
        shares = [graph.constant(f"{output}/mask{i}", mask) for i, mask in enumerate(masks)]
    parts = []
    for position, (share, name) in enumerate(zip(shares, node.input[1:], strict=True)):
        parts.append(f"{output}/{position}")
        mask = graph.constants.get(share)
        value = _real(graph, name)
        if value not in graph.constants:
            graph.emit("Mul", [value, share], parts[-1])
            continue
        content = graph.constants[value]
        if mask is not None:  # what is not chosen does not count, infinite or not
            content = np.where(mask > 0, content, np.float32(0))
        if not np.isfinite(content).all():
            raise UnsupportedFormError("a choice is infinite or no number")
        if mask is None:
            value = graph.constant(f"{parts[-1]}/finite", content)
            graph.emit("Mul", [share, value], parts[-1])
        else:
            graph.constant(parts[-1], content)
    graph.emit("Add", parts, output)


def _cast(graph: Chooser, node: NodeProto) -> None:
    """To float32 nothing happens; to a truth value not being zero counts; to int, towards zero."""
    value, output = node.input[0], node.output[0]
    target = next(helper.get_attribute_value(a) for a in node.attribute if a.name == "to")
    kind = graph.kinds.get(value)
    if target == TensorProto.BOOL:
        graph.kinds[output] = Kind.TRUTH
    elif target in _WHOLE_TYPES:
        graph.kinds[output] = Kind.WHOLE
    elif target != TensorProto.FLOAT:
        raise UnsupportedFormError(f"a cast to {TensorProto.DataType.Name(target).lower()}")
    if target == TensorProto.BOOL and kind is not Kind.TRUTH:
        _either(graph, value, _number(graph, f"{output}/zero", 0.0), output)
    elif target in _WHOLE_TYPES and kind is None:
        _truncated(graph, value, output)
    else:
        graph.emit("Identity", [value], output)


def _truncated(graph: Chooser, value: str, output: str) -> None:
    """``floor(relu(x)) - floor(relu(-x))``."""
    graph.emit("Neg", [value], f"{output}/negated")
    for side, argument in (("above", value), ("below", f"{output}/negated")):
        graph.emit("Relu", [argument], f"{output}/{side}/relu")
        graph.emit("Floor", [f"{output}/{side}/relu"], f"{output}/{side}")
    graph.emit("Sub", [f"{output}/above", f"{output}/below"], output)


def _ceil(graph: Chooser, node: NodeProto) -> None:
    value, output = node.input[0], node.output[0]
    graph.emit("Neg", [value], f"{output}/negated")
    graph.emit("Floor", [f"{output}/negated"], f"{output}/floor")
    graph.emit("Neg", [f"{output}/floor"], output)


CHOICES: dict[str, Callable[[Chooser, NodeProto], None]] = {
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), _compared),
    **dict.fromkeys(("Not", "And", "Or", "Xor"), _logic),
    "Where": _where,
    "Cast": _cast,
    "Sign": _sign,
    "Ceil": _ceil,
}
