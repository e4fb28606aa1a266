"""Activations, products of two perturbed values, quotients, powers, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from auto_LiRPA_patches.engine.translation.affine import scaled
from auto_LiRPA_patches.engine.translation.steps import (
    Chain,
    Step,
    Translator,
    perturbed_shapes,
    value_axis,
)
from auto_LiRPA_patches.engine.upstream_node import UpstreamNode
from auto_LiRPA_patches.operators.arithmetic import Sum
from auto_LiRPA_patches.operators.base import Operator, Shape, num_elements
from auto_LiRPA_patches.operators.bilinear import MatrixProduct, Product
from auto_LiRPA_patches.operators.curves import Exp, Log, Power, Reciprocal, Sqrt
from auto_LiRPA_patches.operators.gaussian import Erf, Gelu
from auto_LiRPA_patches.operators.jumps import Floor, UnitStep
from auto_LiRPA_patches.operators.linear import Linear
from auto_LiRPA_patches.operators.reduction import Reduction
from auto_LiRPA_patches.operators.relu import Relu
from auto_LiRPA_patches.operators.s_shaped import Sigmoid, Tanh
from auto_LiRPA_patches.operators.scaling import ScaleShift
from auto_LiRPA_patches.operators.shape import Broadcast, Reshape
from auto_LiRPA_patches.operators.softmax import (
    Differences,
    ExpDifferences,
    SaturatingExp,
    Share,
)
from auto_LiRPA_patches.operators.waves import Cos, Sin


def _relu(node: UpstreamNode) -> Operator:
    return Relu(node.name, perturbed_shapes(node), node.shape, node.build.relu_lower_slope)


def _elementwise(kind: Callable[..., Operator]) -> Translator:
    def translate(node: UpstreamNode) -> Operator:
        return kind(node.name, perturbed_shapes(node), node.shape)

    return translate


def _matmul(node: UpstreamNode) -> Operator:
    left, right = node.operands
    shapes = perturbed_shapes(node)
    if left.depends_on_input and right.depends_on_input:
        if min(len(shape) for shape in shapes) < 2:
            node.refuse(f"a vector is a factor: {[list(shape) for shape in shapes]}")
        return MatrixProduct(node.name, shapes, node.shape)
    if not left.depends_on_input:
        node.refuse("the first factor is constant and the second one is not")
    if right.constant.dim() != 2:
        node.refuse(f"the second factor has shape {list(right.constant.shape)}, expected a matrix")
    weight, flipped = right.register_matrix()
    return Linear(node.name, shapes, node.shape, weight=weight, bias=None, transposed=not flipped)


def _mul(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    left, right = node.operands
    if left.depends_on_input and right.depends_on_input:
        for place, (value, factor) in enumerate(((left, right), (right, left))):
            inner = _gelu_inner(value, factor)
            if inner is not None and value.shape == node.shape:
                # x (1 + erf(inner x / sqrt 2)): bounded apart, the two would be multiplied.
                gelu = Gelu(node.name, (node.shape,), node.shape, factor=2.0, inner=inner)
                return (Step(gelu, (place,)),)
        if left.bound is right.bound:
            chain = Chain(node)
            chain.add(Power(node.name, (left.shape,), node.shape, 2), 0)
            return chain.finish()
        return Product(node.name, perturbed_shapes(node), node.shape)
    constant = right if left.depends_on_input else left
    return scaled(node, scale=constant.register_broadcast(node.shape))


def _gelu_inner(value: UpstreamNode, factor: UpstreamNode) -> float | None:
    """k where `factor` is ``1 + erf(k value / sqrt 2)`` for one number k > 0, else None."""
    error = _with_constant(factor, "BoundAdd")
    if error is None or error[1] != 1.0 or error[0].kind != "BoundErf":
        return None
    argument = error[0].operands[0]
    for kind in ("BoundDiv", "BoundMul"):
        scaled_value = _with_constant(argument, kind)
        if scaled_value is None or scaled_value[0].bound is not value.bound:
            continue
        by = scaled_value[1]
        if by <= 0 or (kind == "BoundDiv" and argument.operands[1].depends_on_input):
            return None
        return math.sqrt(2) * by if kind == "BoundMul" else math.sqrt(2) / by
    return None


def _with_constant(node: UpstreamNode, kind: str) -> tuple[UpstreamNode, float] | None:
    """The operand that depends on the input and the one number beside it, of a node of `kind`."""
    if node.kind != kind or len(node.operands) != 2:
        return None
    data = [operand for operand in node.operands if operand.depends_on_input]
    constants = [operand for operand in node.operands if not operand.depends_on_input]
    if len(data) != 1 or constants[0].constant.numel() != 1 or data[0].shape != node.shape:
        return None
    return data[0], float(constants[0].constant)


def _div(node: UpstreamNode) -> Operator | tuple[Step, ...]:
    left, right = node.operands
    if not right.depends_on_input:
        if bool((right.constant == 0).any()):
            node.refuse("the divisor holds a zero")
        return scaled(node, scale=right.register_broadcast(node.shape), divide=True)
    chain = Chain(node)
    shape = right.shape
    if not left.depends_on_input:
        inverse = chain.add(Reciprocal(chain.name("inverse"), (shape,), shape), 0)
        if shape != node.shape:
            wide = Broadcast(chain.name("wide"), (shape,), node.shape)
            inverse = chain.add(wide, inverse)
        scale = left.register_broadcast(node.shape)
        chain.add(ScaleShift(node.name, (node.shape,), node.shape, scale=scale), inverse)
        return chain.finish()
    if left.bound is right.bound:
        node.refuse("a value is divided by itself")
    inverse = chain.add(Reciprocal(chain.name("inverse"), (shape,), shape), 1)
    chain.add(Product(node.name, (left.shape, shape), node.shape), 0, inverse)
    return chain.finish()


def _pow(node: UpstreamNode) -> tuple[Step, ...]:
    base, exponent = node.operands
    if exponent.depends_on_input:
        return _exponential(node, base, exponent)
    shapes = perturbed_shapes(node)
    if shapes != (node.shape,):
        node.refuse("its exponents widen the value")
    exponents = sorted(set(exponent.constant.reshape(-1).tolist()))
    chain = Chain(node)
    if len(exponents) == 1:
        _raised(chain, exponents[0], node.name)
        return chain.finish()
    parts = []
    for own in exponents:
        # Every element is raised to every exponent, and counts where the exponent is its own.
        value = _raised(chain, own, chain.name(f"to {own:g}"))
        name = f"{node.name}/where {own:g}"
        where = (exponent.constant == own).to(exponent.constant.dtype)
        mask = exponent.register_broadcast(node.shape, where, name)
        parts.append(chain.add(ScaleShift(name, shapes, node.shape, scale=mask), value))
    inputs = (node.shape,) * len(parts)
    chain.add(Sum(node.name, inputs, node.shape, signs=(1.0,) * len(parts)), *parts)
    return chain.finish()


def _raised(chain: Chain, exponent: float, name: str) -> int:
    """The node's value raised to one exponent, the last step of that name."""
    node, shape = chain.node, chain.node.shape
    if exponent == 0:
        exponents = node.operands[1]
        one = exponents.register_broadcast(shape, torch.ones(1), f"{name}/one")
        return chain.add(ScaleShift(name, (shape,), shape, factor=0.0, shift=one), 0)
    if exponent == 1:
        return chain.add(Reshape(name, (shape,), shape), 0)
    if exponent == 0.5:
        return chain.add(Sqrt(name, (shape,), shape), 0)
    if exponent == -1:
        return chain.add(Reciprocal(name, (shape,), shape), 0)
    if exponent == -0.5:
        root = chain.add(Sqrt(f"{name}/root", (shape,), shape), 0)
        return chain.add(Reciprocal(name, (shape,), shape), root)
    if exponent != int(exponent) or not 2 <= exponent <= _LARGEST_POWER:
        node.refuse(f"exponent {exponent:g}; expected -1, -0.5, 0.5 or a whole number of 0 to 8")
    return chain.add(Power(name, (shape,), shape, int(exponent)), 0)


def _exponential(
    node: UpstreamNode, base: UpstreamNode, exponent: UpstreamNode
) -> tuple[Step, ...]:
    """``b^x = exp(x log b)`` for one constant b > 0."""
    if base.depends_on_input:
        node.refuse("base and exponent depend on the network's input")
    bases = set(base.constant.reshape(-1).tolist())
    if len(bases) != 1 or exponent.shape != node.shape:
        node.refuse("expected one base for all elements")
    number = float(bases.pop())
    if not 0 < number < math.inf:
        node.refuse(f"base {number:g}; expected a number above zero")
    chain, shape = Chain(node), node.shape
    power = ScaleShift(chain.name("log"), (shape,), shape, factor=math.log(number))
    chain.add(Exp(node.name, (shape,), shape), chain.add(power, 0))
    return chain.finish()


_LARGEST_POWER = 8


# Twice as many rows of a backward pass bound them one by one.
_MANY_DIFFERENCES = 1024


def _softmax(node: UpstreamNode) -> tuple[Step, ...]:
    """``1 / sum_j exp(x_j - x_i)``; see `operators.softmax`."""
    chain, total, shape = _sum_of_exponentials(node, saturates=True)
    chain.add(Share(node.name, (shape,), shape), total)
    return chain.finish()


def _log_softmax(node: UpstreamNode) -> tuple[Step, ...]:
    """``-log sum_j exp(x_j - x_i)``; the sum is at least 1."""
    chain, total, shape = _sum_of_exponentials(node, saturates=False)
    logarithm = chain.add(Log(chain.name("log"), (shape,), shape), total)
    chain.add(ScaleShift(node.name, (shape,), shape, factor=-1.0), logarithm)
    return chain.finish()


def _sum_of_exponentials(node: UpstreamNode, *, saturates: bool) -> tuple[Chain, int, Shape]:
    """The steps to ``sum_j exp(x_j - x_i)``, the last one's value, and its shape.

    Args:
        saturates: exp is cut off where it would overflow (`SaturatingExp`).
    """
    (shape,) = perturbed_shapes(node)
    axis = value_axis(node, int(node.attributes.get("axis", -1)), len(shape) + 1)
    if axis != len(shape) - 1:
        node.refuse("it normalises another axis than the last")
    chain = Chain(node)
    wide = (*shape, shape[-1])
    if num_elements(wide) > _MANY_DIFFERENCES:
        exp = ExpDifferences(chain.name("exp"), (shape,), wide, saturates=saturates)
        value = chain.add(exp, 0)
    else:
        value = chain.add(Differences(chain.name("differences"), (shape,), wide), 0)
        kind = SaturatingExp if saturates else Exp
        value = chain.add(kind(chain.name("exp"), (wide,), wide), value)
    total = Reduction(chain.name("sum"), (wide,), shape, axes=(len(shape),))
    return chain, chain.add(total, value), shape


def _greater(node: UpstreamNode) -> tuple[Step, ...]:
    """``x > c`` or ``c > x``, as 1 or 0: the step of ``x - c`` or ``c - x``."""
    left, right = node.operands
    if left.depends_on_input and right.depends_on_input:
        node.refuse("it compares two computed values")
    value, threshold = (left, right) if left.depends_on_input else (right, left)
    sign = 1.0 if left.depends_on_input else -1.0
    chain, shape = Chain(node), node.shape
    wide = 0
    if value.shape != shape:
        wide = chain.add(Broadcast(chain.name("wide"), (value.shape,), shape), 0)
    shift = threshold.register_broadcast(shape)
    difference = ScaleShift(
        chain.name("over"), (shape,), shape, shift=shift, factor=sign, shift_sign=-sign
    )
    largest = float(threshold.constant.abs().max()) if threshold.constant.numel() else 0.0
    step = UnitStep(node.name, (shape,), shape, threshold=largest)
    chain.add(step, chain.add(difference, wide))
    return chain.finish()


def _cast(node: UpstreamNode) -> Operator:
    """Of a truth value, which is a number already."""
    if node.operands[0].kind != "BoundGreater" or int(node.attributes["to"]) != _FLOAT:
        node.refuse("it casts something else than a comparison to float32")
    return Reshape(node.name, perturbed_shapes(node), node.shape)


# TensorProto.FLOAT
_FLOAT = 1


NONLINEAR: dict[str, Translator] = {
    "BoundRelu": _relu,
    "BoundSigmoid": _elementwise(Sigmoid),
    "BoundTanh": _elementwise(Tanh),
    "BoundExp": _elementwise(Exp),
    "BoundLog": _elementwise(Log),
    "BoundSqrt": _elementwise(Sqrt),
    "BoundReciprocal": _elementwise(Reciprocal),
    "BoundSin": _elementwise(Sin),
    "BoundCos": _elementwise(Cos),
    "BoundPow": _pow,
    "BoundMatMul": _matmul,
    "BoundMul": _mul,
    "BoundDiv": _div,
    "BoundSoftmax": _softmax,
    "BoundLogSoftmax": _log_softmax,
    "BoundErf": _elementwise(Erf),
    "BoundFloor": _elementwise(Floor),
    "BoundGreater": _greater,
    "BoundCast": _cast,
}
