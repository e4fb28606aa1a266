"""Read an ONNX file, plain or gzipped, and state what its inputs and outputs look like.

The file is untrusted: whatever is wrong with it ends in one `ModelError`.
"""

from __future__ import annotations

import gzip
import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, ValueInfoProto

from complete_verifier.model.constant_store import ConstantStore
from complete_verifier.model.errors import ModelError
from complete_verifier.model.joined import Part, joined, joint_name
from complete_verifier.model.onnx_graph import OnnxGraph
from complete_verifier.model.onnx_wire import SplitFile, split_weights

MAX_FILE_BYTES = 2**31
"""Protobuf cannot hold more; also the limit for a decompressed `.gz`."""

MAX_INPUT_ELEMENTS = 2**27


@dataclass(frozen=True)
class OnnxInput:
    """The one input of a network; where the file has several, all of them as one vector."""

    name: str
    shape: tuple[int, ...]
    """As the file states it, with an open batch size set to 1, e.g. (1, 3, 32, 32)."""
    has_batch_axis: bool
    """Whether dimension 0 is the batch; False for shapes such as (n,), (1,) or (n, 1)."""
    parts: tuple[Part, ...] = ()
    """The file's inputs in its order: one, or those that are joined here."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one input without batch axis."""
        return self.shape[1:] if self.has_batch_axis else self.shape

    @property
    def is_joint(self) -> bool:
        """Whether the file has several inputs."""
        return len(self.parts) > 1

    @property
    def num_elements(self) -> int:
        """Number of scalars in one input."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX model as read, with what is known of its input and output."""

    path: Path
    graph: OnnxGraph
    input: OnnxInput


def read_onnx(
    path: Path | str,
    input_shape: Sequence[int] | None = None,
    store: ConstantStore = ConstantStore(),  # noqa: B008  frozen
) -> OnnxFile:
    """Returns the network in `path`, or in `path` + ".gz" where only that exists.

    In memory are one copy of the weights, and the largest tensor; two while a gzipped file is read.
    With a store on disk a few blocks are, and what protobuf alone can read.

    Args:
        path: An `.onnx` file, or a gzipped one whose name ends in `.gz`.
        input_shape: `model.input_shape` of the config, batch first, -1 for an open batch size.
            It fills in what the file leaves open and must agree with what the file states.
        store: takes the constants.

    Raises:
        ModelError: unreadable or malformed file; a shape left open.
    """
    found = existing_file(path)
    folder = None if found.suffix == ".gz" else found.parent
    try:
        with _opened(found, store) as stream:
            split = _split(found, stream, store)
            model = _parse(found, split)
            _check_order(found, model)
            network_input, outputs = _input(found, model, input_shape), _outputs(found, model)
            name = network_input.name
            if not network_input.is_joint:
                name = joint_name(model.graph, "joint")
            graph = OnnxGraph.taken_from(model, stream, split.places, folder, store)
    except (TypeError, ValueError, OSError, onnx.checker.ValidationError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{found}: a constant of the network is malformed: {reason}") from error
    return OnnxFile(found, joined(graph, name, network_input.parts, outputs), network_input)


def read_input(path: Path | str, input_shape: Sequence[int] | None = None) -> OnnxInput:
    """Returns the input of the network that `read_onnx` would return, without its weights.

    Raises:
        ModelError: as for `read_onnx`, constants apart.
    """
    found = existing_file(path)
    return _input(found, _without_weights(found), input_shape)


def read_outputs(path: Path | str) -> tuple[Part, ...]:
    """Returns the outputs as the file states them; a single one's shape may be left open: ()."""
    found = existing_file(path)
    return _outputs(found, _without_weights(found))


def existing_file(path: Path | str) -> Path:
    """Returns `path`, or its `.gz` sibling if only that exists."""
    plain = Path(path)
    for candidate in (plain, plain.with_name(plain.name + ".gz")):
        if candidate.is_file():
            return candidate
    raise ModelError(f"{plain}: no such file, and no {plain.name}.gz beside it.")


def read_bytes(path: Path) -> bytes:
    """Returns the file's content, decompressed if its name ends in `.gz`."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError) as error:
        raise ModelError(f"{path}: cannot be read: {error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise ModelError(f"{path}: larger than the {MAX_FILE_BYTES} bytes that ONNX can hold.")
    return content


def _without_weights(path: Path) -> ModelProto:
    store = ConstantStore()
    with _opened(path, store) as stream:
        return _parse(path, _split(path, stream, store))


def _check_order(path: Path, model: ModelProto) -> None:
    """Check that every node reads what stands before it; not all readers of ONNX see to that."""
    graph = model.graph
    given = {"", *(value.name for value in graph.input), *(one.name for one in graph.initializer)}
    for node in graph.node:
        for name in node.input:
            if name not in given:
                raise ModelError(
                    f'{path}: node "{node.name}" ({node.op_type}) reads "{name}": expected an '
                    "input, a constant or the output of a node before it, found none of that name. "
                    "Export the network again, its nodes in topological order."
                )
        given.update(node.output)


@contextmanager
def _opened(path: Path, store: ConstantStore) -> Iterator[BinaryIO]:
    """The file, unpacked where the store is on disk."""
    try:
        if path.suffix == ".gz" and store.on_disk:
            stream = cast("BinaryIO", store.unpacked(path, MAX_FILE_BYTES))
        else:
            stream = path.open("rb")
    except (OSError, EOFError) as error:
        raise ModelError(f"{path}: cannot be read: {error}.") from error
    with stream:
        yield stream


def _parse(path: Path, split: SplitFile) -> ModelProto:
    """The model without what `split` leaves out."""
    try:
        model = onnx.load_model_from_string(split.message)
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{path}: not a readable ONNX file: {error}.") from error
    if not model.graph.node:
        raise ModelError(f"{path}: not an ONNX network: it has no nodes.")
    if not model.graph.output:
        raise ModelError(f"{path}: not an ONNX network: it has no output.")
    return model


def _split(path: Path, stream: BinaryIO, store: ConstantStore) -> SplitFile:
    """The file that `stream` reads, as a whole where it has to be."""
    split = None
    if path.suffix != ".gz" or store.on_disk:
        try:
            with (
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
                memoryview(mapped) as content,
            ):
                split = split_weights(content) if len(content) <= MAX_FILE_BYTES else None
        except (OSError, ValueError):  # not a file that can be mapped, or empty
            pass
    return split or SplitFile(read_bytes(path), {})


def _input(path: Path, model: ModelProto, override: Sequence[int] | None) -> OnnxInput:
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialised]
    if not inputs:
        raise ModelError(f"{path}: not an ONNX network: it has no input.")
    own = override if len(inputs) == 1 else None
    parts = tuple(_part(path, value, own) for value in inputs)
    total = sum(part.size for part in parts)
    if total > MAX_INPUT_ELEMENTS:
        raise ModelError(f'{path}: input "{parts[0].name}" has {total} elements, too many.')
    if len(parts) == 1:
        name, shape = parts[0].name, parts[0].shape
        return OnnxInput(name, shape, len(shape) > 1 and shape[0] == 1, parts)
    if override is not None and abs(math.prod(override)) != total:
        raise ModelError(
            f"model.input_shape: {list(override)} has {abs(math.prod(override))} elements, but the "
            f"{len(parts)} inputs of {path} have {total} together. Remove the line or correct it."
        )
    return OnnxInput(joint_name(model.graph, "joint"), (1, total), True, parts)


def _part(path: Path, value: ValueInfoProto, override: Sequence[int] | None) -> Part:
    name, kind = value.name, value.type.tensor_type
    if kind.elem_type != TensorProto.FLOAT:
        got = TensorProto.DataType.Name(kind.elem_type) if kind.elem_type else "no type"
        raise ModelError(f'{path}: input "{name}": expected float32, got {got}.')
    sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim]
    return Part(name, _resolved(f'{path}: input "{name}"', sizes, override))


def _outputs(path: Path, model: ModelProto) -> tuple[Part, ...]:
    """The file's outputs; where there are several, each has to state its shape."""
    values = list(model.graph.output)
    parts = []
    for value in values:
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in dims]
        stated = value.type.tensor_type.HasField("shape")
        if len(sizes) > 1 and sizes[0] is None:
            sizes[0] = 1
        if len(values) > 1 and (not stated or None in sizes):
            raise ModelError(
                f'{path}: output "{value.name}", one of {len(values)}, leaves its shape open. '
                "Export the network with fixed shapes."
            )
        shape = () if None in sizes else tuple(size for size in sizes if size is not None)
        parts.append(Part(value.name, shape))
    return tuple(parts)


def _resolved(
    where: str, sizes: Sequence[int | None], override: Sequence[int] | None
) -> tuple[int, ...]:
    """Fill the open sizes: the batch with 1, any other from `model.input_shape`."""
    wanted = None if override is None else [1 if size == -1 else size for size in override]
    shape = list(sizes)
    if len(shape) > 1 and shape[0] is None:
        shape[0] = 1
    if wanted is not None and None in shape and len(wanted) == len(shape):
        shape = [size or given for size, given in zip(shape, wanted, strict=True)]
    resolved = tuple(size for size in shape if size is not None)
    if len(resolved) != len(shape) or not resolved:
        stated = [size if size is not None else "?" for size in sizes]
        raise ModelError(
            f"{where}: the file leaves its shape open: {stated}. "
            f"Set model.input_shape, for example [-1, 3, 32, 32]."
        )
    if wanted is not None and math.prod(wanted) != math.prod(resolved):
        raise ModelError(
            f"model.input_shape: {list(override or ())} has {math.prod(wanted)} elements, "
            f"but {where} has shape {list(resolved)}. Remove the line or correct it."
        )
    return resolved
