"""Gemm, Conv, ConvTranspose, BatchNormalization, reductions, and arithmetic with constants."""

from __future__ import annotations

from typing import Any

from auto_LiRPA_patches.engine.translation.steps import (
    Chain,
    Step,
    Translator,
    perturbed_shapes,
    require_constants,
    value_axis,
)
from auto_LiRPA_patches.engine.upstream_node import UpstreamNode
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import Operator, num_elements
from auto_LiRPA_patches.operators.convolution import BatchNorm, Conv, ConvTranspose
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.reduction import Reduction
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Broadcast
from auto_LiRPA_patches.sharding.weights import WeightHandle


def _bias(node: UpstreamNode) -> WeightHandle | None:
    operands = node.operands
    return operands[2].register() if len(operands) > 2 else None


def _gemm(node: UpstreamNode) -> Operator:
    require_constants(node, 1, 2)
    given = node.attributes
    for name, plain in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)):
        if float(given.get(name, plain)) != plain:
            node.refuse(f"{name} is {given[name]}, expected {plain}")
    weight, flipped = node.operands[1].register_matrix()
    return Linear(
        node.name,
        perturbed_shapes(node),
        node.shape,
        weight=weight,
        bias=_bias(node),
        transposed=bool(given.get("transB", 0)) == flipped,
    )


def _conv(node: UpstreamNode) -> Operator:
    return Conv(node.name, perturbed_shapes(node), node.shape, **_sliding(node))


def _conv_transpose(node: UpstreamNode) -> Operator:
    sliding = _sliding(node)
    spare = node.attributes.get("output_padding", [0] * len(sliding["stride"]))
    return ConvTranspose(
        node.name, perturbed_shapes(node), node.shape, output_padding=tuple(spare), **sliding
    )


def _sliding(node: UpstreamNode) -> dict[str, Any]:
    """What a convolution and its adjoint have in common: weights, and how the kernel moves."""
    pads = _symmetric_pads(node)
    given, axes = node.attributes, len(pads)
    return {
        "weight": node.operands[1].register(),
        "bias": _bias(node),
        "stride": tuple(given.get("strides", [1] * axes)),
        "padding": pads,
        "dilation": tuple(given.get("dilations", [1] * axes)),
        "groups": int(given.get("group", 1)),
    }


def _symmetric_pads(node: UpstreamNode) -> tuple[int, ...]:
    """Padding per spatial axis of a convolution with constant weights in one or two dimensions."""
    require_constants(node, 1, 2)
    axes = len(node.shape) - 1
    if axes not in (1, 2):
        node.refuse(f"{axes} spatial axes, expected 1 or 2")
    pads = [int(pad) for pad in node.attributes.get("pads", [0] * (2 * axes))]
    if pads[:axes] != pads[axes:]:
        node.refuse(f"asymmetric padding {pads}")
    return tuple(pads[:axes])


def _batch_norm(node: UpstreamNode) -> Operator:
    require_constants(node, 1, 2, 3, 4)
    gamma, beta, mean, variance = (operand.register() for operand in node.operands[1:5])
    epsilon = float(node.attributes.get("epsilon", 1e-5))
    return BatchNorm(
        node.name,
        perturbed_shapes(node),
        node.shape,
        gamma=gamma,
        beta=beta,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
    )


def _add(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    return _sum_or_shift(node, 1.0)


def _sub(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    return _sum_or_shift(node, -1.0)


def _sum_or_shift(node: UpstreamNode, sign: float) -> Operator | tuple[Step, ...]:
    left, right = node.operands
    if left.depends_on_input and right.depends_on_input:
        return Sum(node.name, perturbed_shapes(node), node.shape, (1.0, sign))
    constant, factor, shift_sign = left, sign, 1.0
    if left.depends_on_input:
        constant, factor, shift_sign = right, 1.0, sign
    if factor == 1.0 and _adds_nothing(node, constant):
        return ()
    shift = constant.register_broadcast(node.shape)
    return scaled(node, shift=shift, factor=factor, shift_sign=shift_sign)


def _adds_nothing(node: UpstreamNode, constant: UpstreamNode) -> bool:
    """Whether a shift leaves values as they are: means of zero, as ACAS Xu's networks have them."""
    return perturbed_shapes(node) == (node.shape,) and not bool(constant.constant.any())


def _neg(node: UpstreamNode) -> Operator:
    return ScaleShift(node.name, perturbed_shapes(node), node.shape, factor=-1.0)


def scaled(
    node: UpstreamNode,
    *,
    scale: WeightHandle | None = None,
    shift: WeightHandle | None = None,
    factor: float = 1.0,
    shift_sign: float = 1.0,
    divide: bool = False,
) -> Operator | tuple[Step, ...]:
    """`ScaleShift` of the one perturbed operand, broadcast first where a constant is wider."""
    (given,) = perturbed_shapes(node)
    operator = ScaleShift(
        node.name,
        (node.shape,),
        node.shape,
        scale=scale,
        shift=shift,
        factor=factor,
        shift_sign=shift_sign,
        divide=divide,
    )
    if given == node.shape:
        return operator
    chain = Chain(node)
    wide = chain.add(Broadcast(chain.name("wide"), (given,), node.shape), 0)
    chain.add(operator, wide)
    return chain.finish()


def _reduce_sum(node: UpstreamNode) -> Operator:
    return _reduction(node, mean=False)


def _reduce_mean(node: UpstreamNode) -> Operator:
    return _reduction(node, mean=True)


def _reduction(node: UpstreamNode, mean: bool) -> Operator:
    require_constants(node, 1)
    (shape,) = perturbed_shapes(node)
    given = node.attributes
    if len(node.operands) > 1:
        axes = [int(axis) for axis in node.operands[1].constant.reshape(-1)]
    elif given.get("axes") is not None:
        axes = [int(axis) for axis in given["axes"]]
    else:
        node.refuse("it reduces the batch axis too")
    inner = sorted({value_axis(node, axis, len(shape) + 1) for axis in axes})
    count = num_elements(tuple(shape[axis] for axis in inner))
    return Reduction(
        node.name,
        (shape,),
        node.shape,
        axes=tuple(inner),
        keep_axes=bool(given.get("keepdims", 1)),
        factor=1.0 / count if mean else 1.0,
    )


AFFINE: dict[str, Translator] = {
    "BoundLinear": _gemm,
    "BoundConv": _conv,
    "BoundConvTranspose": _conv_transpose,
    "BoundBatchNormalization": _batch_norm,
    "BoundAdd": _add,
    "BoundSub": _sub,
    "BoundNeg": _neg,
    "BoundReduceSum": _reduce_sum,
    "BoundReduceMean": _reduce_mean,
}
