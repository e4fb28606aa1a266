"""From auto_LiRPA's node classes to the engine's operators: one function per form.

A form that is not known to be bounded soundly is refused by name; nothing falls through.
"""

from __future__ import annotations

from collections.abc import Callable

from auto_LiRPA_patches.engine.upstream_node import UpstreamNode
from auto_LiRPA_patches.operators.arithmetic import Product, Sum
from auto_LiRPA_patches.operators.base import Operator, num_elements
from auto_LiRPA_patches.operators.convolution import BatchNorm, Conv
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.operators.s_shaped import Sigmoid, Tanh
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Concat, ConstantPad, Reshape, Select, Transpose
from auto_LiRPA_patches.sharding.weights import WeightHandle

Translator = Callable[[UpstreamNode], Operator]


def _inputs(node: UpstreamNode) -> tuple[tuple[int, ...], ...]:
    return tuple(source.shape for source in node.operands if source.depends_on_input)


def _require_constants(node: UpstreamNode, *positions: int) -> None:
    for position in positions:
        if position < len(node.operands) and node.operands[position].depends_on_input:
            node.refuse(f"operand {position} depends on the network's input")


def _weight_and_bias(node: UpstreamNode) -> tuple[WeightHandle, WeightHandle | None]:
    operands = node.operands
    return operands[1].register(), operands[2].register() if len(operands) > 2 else None


def _gemm(node: UpstreamNode) -> Operator:
    _require_constants(node, 1, 2)
    given = node.attributes
    for name, plain in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)):
        if float(given.get(name, plain)) != plain:
            node.refuse(f"{name} is {given[name]}, expected {plain}")
    weight, bias = _weight_and_bias(node)
    return Linear(
        node.name,
        _inputs(node),
        node.shape,
        weight=weight,
        bias=bias,
        transposed=not bool(given.get("transB", 0)),
    )


def _matmul(node: UpstreamNode) -> Operator:
    left, right = node.operands
    if not left.depends_on_input or right.depends_on_input:
        node.refuse("only the first factor may depend on the network's input")
    if right.constant.dim() != 2:
        node.refuse(f"the second factor has shape {list(right.constant.shape)}, expected a matrix")
    return Linear(
        node.name, _inputs(node), node.shape, weight=right.register(), bias=None, transposed=True
    )


def _conv(node: UpstreamNode) -> Operator:
    _require_constants(node, 1, 2)
    given = node.attributes
    axes = len(node.shape) - 1
    if axes not in (1, 2):
        node.refuse(f"{axes} spatial axes, expected 1 or 2")
    pads = [int(pad) for pad in given.get("pads", [0] * (2 * axes))]
    if pads[:axes] != pads[axes:]:
        node.refuse(f"asymmetric padding {pads}")
    weight, bias = _weight_and_bias(node)
    return Conv(
        node.name,
        _inputs(node),
        node.shape,
        weight=weight,
        bias=bias,
        stride=tuple(given.get("strides", [1] * axes)),
        padding=tuple(pads[:axes]),
        dilation=tuple(given.get("dilations", [1] * axes)),
        groups=int(given.get("group", 1)),
    )


def _batch_norm(node: UpstreamNode) -> Operator:
    _require_constants(node, 1, 2, 3, 4)
    gamma, beta, mean, variance = (operand.register() for operand in node.operands[1:5])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return BatchNorm(
        node.name,
        _inputs(node),
        node.shape,
        gamma=gamma,
        beta=beta,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
    )


def _add(node: UpstreamNode) -> Operator:
    return _sum_or_shift(node, 1.0)


def _sub(node: UpstreamNode) -> Operator:
    return _sum_or_shift(node, -1.0)


def _sum_or_shift(node: UpstreamNode, sign: float) -> Operator:
    left, right = node.operands
    if left.depends_on_input and right.depends_on_input:
        return Sum(node.name, _inputs(node), node.shape, (1.0, sign))
    _require_same_shape(node)
    if left.depends_on_input:
        shift = right.register_broadcast(node.shape)
        return ScaleShift(node.name, _inputs(node), node.shape, shift=shift, shift_sign=sign)
    shift = left.register_broadcast(node.shape)
    return ScaleShift(node.name, _inputs(node), node.shape, shift=shift, factor=sign)


def _mul(node: UpstreamNode) -> Operator:
    left, right = node.operands
    if left.depends_on_input and right.depends_on_input:
        return Product(node.name, _inputs(node), node.shape)
    _require_same_shape(node)
    constant = right if left.depends_on_input else left
    scale = constant.register_broadcast(node.shape)
    return ScaleShift(node.name, _inputs(node), node.shape, scale=scale)


def _div(node: UpstreamNode) -> Operator:
    _require_constants(node, 1)
    _require_same_shape(node)
    divisor = node.operands[1]
    if bool((divisor.constant == 0).any()):
        node.refuse("the divisor holds a zero")
    scale = divisor.register_broadcast(node.shape)
    return ScaleShift(node.name, _inputs(node), node.shape, scale=scale, divide=True)


def _neg(node: UpstreamNode) -> Operator:
    return ScaleShift(node.name, _inputs(node), node.shape, factor=-1.0)


def _require_same_shape(node: UpstreamNode) -> None:
    (shape,) = _inputs(node)
    if shape != node.shape:
        node.refuse(f"a constant widens the value from {list(shape)} to {list(node.shape)}")


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
    return Transpose(node.name, _inputs(node), node.shape, axes)


def _value_axis(node: UpstreamNode, axis: int, rank_with_batch: int) -> int:
    axis = axis + rank_with_batch if axis < 0 else axis
    if axis == 0:
        node.refuse("it acts on the batch axis")
    return axis - 1


def _concat(node: UpstreamNode) -> Operator:
    if not all(source.depends_on_input for source in node.operands):
        node.refuse("an operand is constant")
    axis = _value_axis(node, int(node.attributes["axis"]), len(node.shape) + 1)
    return Concat(node.name, _inputs(node), node.shape, axis)


def _slice(node: UpstreamNode) -> Operator:
    _require_constants(node, 1, 2, 3, 4)
    given = [[int(v) for v in operand.constant.reshape(-1)] for operand in node.operands[1:]]
    starts, ends = given[0], given[1]
    shape = node.operands[0].shape
    if len(starts) != 1:
        node.refuse("several axes are sliced at once")
    axis = _value_axis(node, given[2][0] if len(given) > 2 else 0, len(shape) + 1)
    step = given[3][0] if len(given) > 3 else 1
    index = tuple(range(shape[axis]))[starts[0] : ends[0] : step]
    return Select(node.name, (shape,), node.shape, axis, index)


def _gather(node: UpstreamNode) -> Operator:
    _require_constants(node, 1)
    shape = node.operands[0].shape
    axis = _value_axis(node, int(node.attributes.get("axis", 0)), len(shape) + 1)
    indices = node.operands[1].constant
    if indices.dim() > 1:
        node.refuse(f"indices of shape {list(indices.shape)}, expected a scalar or a vector")
    size = shape[axis]
    index = tuple(int(i) + size if int(i) < 0 else int(i) for i in indices.reshape(-1))
    drop_axis = indices.dim() == 0 and len(shape) > 1
    return Select(node.name, (shape,), node.shape, axis, index, drop_axis)


def _pad(node: UpstreamNode) -> Operator:
    _require_constants(node, 1, 2)
    given = node.attributes
    mode = given.get("mode", "constant")
    if mode not in ("constant", b"constant"):
        node.refuse(f"padding mode {mode}")
    operands = node.operands
    if len(operands) > 1:
        pads = [int(pad) for pad in operands[1].constant.reshape(-1)]
        value = float(operands[2].constant) if len(operands) > 2 else 0.0
    else:
        pads = [int(pad) for pad in given["pads"]]
        value = float(given.get("value", 0.0))
    half = len(pads) // 2
    if pads[0] or pads[half] or min(pads) < 0:
        node.refuse(f"pads {pads} touch the batch axis or are negative")
    return ConstantPad(
        node.name, _inputs(node), node.shape, tuple(pads[1:half]), tuple(pads[half + 1 :]), value
    )


def _relu(node: UpstreamNode) -> Operator:
    return Relu(node.name, _inputs(node), node.shape, node.build.relu_lower_slope)


TRANSLATORS: dict[str, Translator] = {
    "BoundLinear": _gemm,
    "BoundMatMul": _matmul,
    "BoundConv": _conv,
    "BoundBatchNormalization": _batch_norm,
    "BoundAdd": _add,
    "BoundSub": _sub,
    "BoundMul": _mul,
    "BoundDiv": _div,
    "BoundNeg": _neg,
    "BoundReshape": _reshape,
    "BoundFlatten": _reshape,
    "BoundSqueeze": _reshape,
    "BoundUnsqueeze": _reshape,
    "BoundIdentity": _reshape,
    "BoundDropout": _reshape,
    "BoundTranspose": _transpose,
    "BoundConcat": _concat,
    "BoundSlice": _slice,
    "BoundGather": _gather,
    "BoundPad": _pad,
    "BoundRelu": _relu,
    "BoundSigmoid": lambda node: Sigmoid(node.name, _inputs(node), node.shape),
    "BoundTanh": lambda node: Tanh(node.name, _inputs(node), node.shape),
}


def translate(node: UpstreamNode) -> Operator:
    """The engine's operator for one of upstream's nodes.

    Raises:
        UnsupportedOperatorError: no sound bounds are known for it; names node and operator.
    """
    translator = TRANSLATORS.get(node.kind)
    if translator is None:
        known = ", ".join(sorted(kind.removeprefix("Bound") for kind in TRANSLATORS))
        node.refuse(f"it has no bounds here (known: {known})")
    return translator(node)
