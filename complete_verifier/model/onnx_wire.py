"""Split the weights off an ONNX file without reading them: bytes of the model, places of the rest.

protobuf holds a file and its message together, and a message and the arrays copied out of it: two
copies of the weights each time. Here the file's outer fields are walked (numbers as in onnx.proto3)
and the content of large initialisers is left out, so that it can be read straight into arrays.
Whatever is out of the ordinary is left to protobuf, which also tells what is wrong with a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_GRAPH, _INITIALIZER = 7, 5  # of ModelProto and GraphProto
_DATA_TYPE, _FLOAT_DATA, _RAW_DATA, _DOUBLE_DATA = 2, 4, 9, 10  # of TensorProto
_CONTENT = frozenset({3, 4, 5, 6, 7, 9, 10, 11, 13, 14})
"""Segment, typed and raw data, data in other files; what has several stays in the message."""

_SAME_BYTES = {_FLOAT_DATA: 1, _DOUBLE_DATA: 11}
"""Typed data that is packed as raw data is, by the one type that it stands for: float, double."""

PLAIN_TYPES = frozenset({1, 2, 3, 6, 7, 9, 10, 11})
"""float, uint8, int8, int32, int64, bool, float16, double: one element is one number of numpy."""

_WORTH_BYTES = 1024
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Place:
    """Where in the file the content of an initialiser lies, in bytes."""

    offset: int
    length: int


@dataclass(frozen=True)
class SplitFile:
    """A serialised model without the content of its large initialisers.

    Attributes:
        message: as protobuf reads it.
        places: by the position of an initialiser among all of them.
    """

    message: bytes
    places: Mapping[int, Place]


@dataclass(frozen=True)
class _Field:
    number: int
    wire: int
    start: int
    """Where its tag begins."""
    value: int
    """Where its content begins."""
    end: int


def split_weights(content: memoryview) -> SplitFile | None:
    """The model and the places of its weights, or None where protobuf had better look at it.

    Args:
        content: the whole file; only what is around the weights is read.
    """
    try:
        outer = list(_fields(content, 0, len(content)))
        graphs = [field for field in outer if field.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _DELIMITED:
            return None
        (graph,) = graphs
        places: dict[int, Place] = {}
        light = _light_graph(content, graph, places)
    except (IndexError, ValueError):
        return None
    before, after = bytes(content[: graph.start]), bytes(content[graph.end :])
    return SplitFile(before + _delimited(_GRAPH, light) + after, places)


def _light_graph(content: memoryview, graph: _Field, places: dict[int, Place]) -> bytes:
    parts, count = [], 0
    for field in _fields(content, graph.value, graph.end):
        light = None
        if field.number == _INITIALIZER:
            if field.wire == _DELIMITED:
                light = _light_tensor(content, field, places, count)
            count += 1
        parts.append(bytes(content[field.start : field.end]) if light is None else light)
    return b"".join(parts)


def _light_tensor(
    content: memoryview, tensor: _Field, places: dict[int, Place], number: int
) -> bytes | None:
    """The initialiser without its content, which is noted in `places`; None = leave it whole."""
    fields = list(_fields(content, tensor.value, tensor.end))
    held = [field for field in fields if field.number in _CONTENT]
    if len(held) != 1 or held[0].wire != _DELIMITED or held[0].end - held[0].value < _WORTH_BYTES:
        return None
    types = [field for field in fields if field.number == _DATA_TYPE]
    if len(types) != 1 or (kind := _varint(content, types[0].value)[0]) not in PLAIN_TYPES:
        return None
    if held[0].number != _RAW_DATA and _SAME_BYTES.get(held[0].number) != kind:
        return None
    places[number] = Place(held[0].value, held[0].end - held[0].value)
    rest = (bytes(content[f.start : f.end]) for f in fields if f is not held[0])
    return _delimited(_INITIALIZER, b"".join(rest))


def _fields(content: memoryview, start: int, end: int) -> Iterator[_Field]:
    """The fields of one message.

    Raises:
        ValueError: a group, or a field that reaches over the end.
        IndexError: the file ends within a number.
    """
    at = start
    while at < end:
        tag, value = _varint(content, at)
        wire = tag & 7
        if wire == _VARINT:
            _, after = _varint(content, value)
        elif wire == _DELIMITED:
            length, value = _varint(content, value)
            after = value + length
        elif wire in (_FIXED64, _FIXED32):
            after = value + (8 if wire == _FIXED64 else 4)
        else:
            raise ValueError("a group")
        if after > end:
            raise ValueError("a field reaches over the end")
        yield _Field(tag >> 3, wire, at, value, after)
        at = after


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for position in range(10):
        byte = content[at + position]
        number |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return number, at + position + 1
    raise ValueError("a number of more than ten bytes")


def _delimited(number: int, value: bytes) -> bytes:
    return _written((number << 3) | _DELIMITED) + _written(len(value)) + value


def _written(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append((number & 0x7F) | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
