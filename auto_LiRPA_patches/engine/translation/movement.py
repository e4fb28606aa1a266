"""Reshape and its kin, Transpose, Concat, Slice, Gather, Split, Expand, Pad."""

from __future__ import annotations

from torch import Tensor

from auto_LiRPA_patches.engine.translation.steps import (
    Chain,
    Step,
    Translator,
    perturbed_shapes,
    require_constants,
    value_axis,
)
from auto_LiRPA_patches.engine.upstream_node import UpstreamNode
from auto_LiRPA_patches.operators.base import Operator, num_elements
from auto_LiRPA_patches.operators.shape import (
    Broadcast,
    Concat,
    ConstantPad,
    Reshape,
    Select,
    Transpose,
    pad_value,
)
from auto_LiRPA_patches.sharding.weights import WeightHandle


def _reshape(node: UpstreamNode) -> Operator:
    shape = node.operands[0].shape
    if num_elements(shape) != num_elements(node.shape):
        node.refuse(f"elements move between batch and value: {list(shape)} to {list(node.shape)}")
    return Reshape(node.name, (shape,), node.shape)


def _transpose(node: UpstreamNode) -> Operator:
    permutation = [int(axis) for axis in node.attributes["perm"]]
    if permutation[0] != 0:
        node.refuse(f"the batch axis is moved: {permutation}")
    axes = tuple(axis - 1 for axis in permutation[1:])
    return Transpose(node.name, perturbed_shapes(node), node.shape, axes)


def _concat(node: UpstreamNode) -> Operator:
    axis = value_axis(node, int(node.attributes["axis"]), len(node.shape) + 1)
    constants: list[WeightHandle | None] = []
    for operand in node.operands:
        if operand.depends_on_input:
            constants.append(None)
            continue
        shape = tuple(operand.constant.shape)
        if len(shape) != len(node.shape) + 1 or shape[0] != 1:
            node.refuse(f"a constant of shape {list(shape)} has no batch axis of size 1")
        constants.append(operand.register())
    return Concat(node.name, perturbed_shapes(node), node.shape, axis, tuple(constants))


def _slice(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    require_constants(node, 1, 2, 3, 4)
    given = [_integers(operand.constant) for operand in node.operands[1:]]
    starts, ends = given[0], given[1]
    axes = given[2] if len(given) > 2 else list(range(len(starts)))
    steps = given[3] if len(given) > 3 else [1] * len(starts)
    shape = node.operands[0].shape
    picked = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        inner = value_axis(node, axis, len(shape) + 1)
        picked[inner] = tuple(range(shape[inner]))[start:end:step]
    return _selections(node, picked)


def _split(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    require_constants(node, 1)
    shape = node.operands[0].shape
    axis = value_axis(node, int(node.attributes.get("axis", 0)), len(shape) + 1)
    if len(node.operands) > 1:
        sizes = _integers(node.operands[1].constant)
    elif "split" in node.attributes:
        sizes = [int(size) for size in node.attributes["split"]]
    else:
        node.refuse("the sizes of its parts are not given")
    start = sum(sizes[: node.output_index])
    stop = start + sizes[node.output_index]
    return _selections(node, {axis: tuple(range(start, stop))})


def _selections(
    node: UpstreamNode, picked: dict[int, tuple[int, ...]]
) -> Operator | tuple[Step, ...]:
    """One `Select` per axis (counted without batch) whose elements are not all kept in order."""
    chain = Chain(node)
    value, shape = 0, node.operands[0].shape
    for axis, index in picked.items():
        if index == tuple(range(shape[axis])):
            continue
        output = (*shape[:axis], len(index), *shape[axis + 1 :])
        operator = Select(chain.name(f"axis{axis}"), (shape,), output, axis, index)
        value, shape = chain.add(operator, value), output
    if not chain.steps:
        return Reshape(node.name, (shape,), node.shape)
    return chain.finish()


def _gather(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    require_constants(node, 1)
    shape = node.operands[0].shape
    axis = value_axis(node, int(node.attributes.get("axis", 0)), len(shape) + 1)
    indices = node.operands[1].constant
    size = shape[axis]
    index = tuple(i + size if i < 0 else i for i in _integers(indices))
    if any(not 0 <= i < size for i in index):
        node.refuse(f"an index outside the axis of size {size}")
    flat = (*shape[:axis], len(index), *shape[axis + 1 :])
    chain = Chain(node)
    value = chain.add(Select(chain.name("picked"), (shape,), flat, axis, index), 0)
    if flat != node.shape:
        # Indices of no axis drop the axis, those of several put as many in its place.
        chain.add(Reshape(node.name, (flat,), node.shape), value)
    return chain.finish()


def _expand(node: UpstreamNode) -> Operator:
    require_constants(node, 1)
    return Broadcast(node.name, perturbed_shapes(node), node.shape)


def _pad(node: UpstreamNode) -> Operator:
    require_constants(node, 1, 2)
    given = node.attributes
    mode = given.get("mode", "constant")
    if mode not in ("constant", b"constant"):
        node.refuse(f"padding mode {mode}")
    operands = node.operands
    if len(operands) > 1:
        pads = _integers(operands[1].constant)
        value = pad_value(operands[2].constant) if len(operands) > 2 else 0.0
    else:
        pads = [int(pad) for pad in given["pads"]]
        value = float(given.get("value", 0.0))
    half = len(pads) // 2
    if pads[0] or pads[half] or min(pads) < 0:
        node.refuse(f"pads {pads} touch the batch axis or are negative")
    return ConstantPad(
        node.name,
        perturbed_shapes(node),
        node.shape,
        tuple(pads[1:half]),
        tuple(pads[half + 1 :]),
        value,
    )


def _integers(constant: Tensor) -> list[int]:
    return [int(value) for value in constant.reshape(-1)]


MOVEMENT: dict[str, Translator] = {
    **dict.fromkeys(
        (
            "BoundReshape",
            "BoundFlatten",
            "BoundSqueeze",
            "BoundUnsqueeze",
            "BoundIdentity",
            "BoundDropout",
        ),
        _reshape,
    ),
    "BoundTranspose": _transpose,
    "BoundConcat": _concat,
    "BoundSlice": _slice,
    "BoundSplit": _split,
    "BoundGather": _gather,
    "BoundExpand": _expand,
    "BoundPad": _pad,
}
