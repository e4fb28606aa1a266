"""The types that keys have, read off their annotations, and the step from written to typed."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from complete_verifier.config import raw as written
from complete_verifier.config.callables import NamedCallable, parse_callable
from complete_verifier.config.option import JsonText
from complete_verifier.config.raw import RawList, RawMapping, RawScalar, RawValue


class _NoValue:
    """Says that a written value has none of the types that a key admits."""


NO_VALUE = _NoValue()


@dataclass(frozen=True, slots=True)
class Kind:
    """The set of types that a key admits; `item` is set where it is a list."""

    boolean: bool = False
    integer: bool = False
    number: bool = False
    text: bool = False
    function: bool = False
    structured: bool = False
    optional: bool = False
    choices: tuple[str, ...] = ()
    item: Kind | None = None

    def describe(self, bounds: str = "") -> str:
        """The kind in words; `bounds` follows the word for a number."""
        words = []
        if self.choices:
            listed = ", ".join(self.choices)
            words.append(listed if len(self.choices) == 1 else f"one of {listed}")
        if self.boolean:
            words.append("true or false")
        if self.integer:
            words.append(f"an int{bounds}")
        if self.number:
            words.append(f"a number{bounds}")
        if self.text:
            words.append("text")
        if self.function:
            words.append('Customized("module", "function")')
        if self.structured:
            words.append("any value")
        if self.item is not None:
            words.append(f"a list, each {self.item.describe(bounds)}")
        if self.optional:
            words.append("null")
        return " or ".join(words)

    def convert(self, raw: RawValue) -> Any:
        """The typed value, or NO_VALUE where `raw` has none of the admitted types."""
        if isinstance(raw, RawScalar):
            return self._convert_scalar(raw)
        if self.structured:
            return JsonText(written.to_json(raw))
        if isinstance(raw, RawMapping) or self.item is None:
            return NO_VALUE
        return self._convert_items(raw)

    def _convert_items(self, raw: RawList) -> Any:
        item = self.item or Kind()
        values = tuple(item.convert(element) for element in raw.items)
        return NO_VALUE if any(value is NO_VALUE for value in values) else values

    def _convert_scalar(self, raw: RawScalar) -> Any:
        if self.optional and (written.is_null(raw) or not raw.text):
            return None
        value = self._convert_word(raw)
        if value is NO_VALUE and self.item is not None:
            return self._convert_items(self._split_names(raw))
        return value

    def _split_names(self, raw: RawScalar) -> RawList:
        """A word that stands for a list: one item, or several names separated by commas."""
        if self.item is None or not self.item.text:
            return RawList((raw,))
        names = [name.strip() for name in raw.text.split(",")]
        return RawList(tuple(RawScalar(name, raw.tag, raw.quoted) for name in names if name))

    def _convert_word(self, raw: RawScalar) -> Any:
        truth = written.as_bool(raw)
        if self.boolean and truth is not None:
            return truth
        word = raw.text.lower() if truth is not None else raw.text
        if word in self.choices:
            return word
        for admitted, convert in ((self.integer, written.as_int), (self.number, written.as_float)):
            number = convert(raw) if admitted else None
            if number is not None:
                return number
        if self.structured:
            return JsonText(raw.text)
        if self.function and (not self.choices or "(" in raw.text):
            return parse_callable(raw.text) or NO_VALUE
        text = written.as_text(raw) if self.text else None
        return NO_VALUE if text is None else text


def _single_kind(annotation: Any) -> Kind:
    """The kind of an annotation that is not a union."""
    if get_origin(annotation) is Literal:
        return Kind(choices=get_args(annotation))
    if get_origin(annotation) is tuple:
        return Kind(item=kind_of(get_args(annotation)[0]))
    known = {
        bool: Kind(boolean=True),
        int: Kind(integer=True),
        float: Kind(number=True),
        str: Kind(text=True),
        NamedCallable: Kind(function=True),
        JsonText: Kind(structured=True),
        type(None): Kind(optional=True),
    }
    return known[annotation]


def kind_of(annotation: Any) -> Kind:
    """The kind of a field's annotation, a union or a single type."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = [_single_kind(part) for part in (get_args(annotation) if is_union else (annotation,))]
    return Kind(
        boolean=any(kind.boolean for kind in kinds),
        integer=any(kind.integer for kind in kinds),
        number=any(kind.number for kind in kinds),
        text=any(kind.text for kind in kinds),
        function=any(kind.function for kind in kinds),
        structured=any(kind.structured for kind in kinds),
        optional=any(kind.optional for kind in kinds),
        choices=tuple(choice for kind in kinds for choice in kind.choices),
        item=next((kind.item for kind in kinds if kind.item is not None), None),
    )
