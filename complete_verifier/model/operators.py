"""The ONNX operators that networks may be made of, from the code that handles them."""

from __future__ import annotations

import onnx.defs

from auto_LiRPA_patches.engine.translators import bounded_operators
from complete_verifier.model.choices import CHOICES
from complete_verifier.model.composed import COMPOSED
from complete_verifier.model.normalise import WRITERS
from complete_verifier.model.piecewise import PIECEWISE
from complete_verifier.model.simplify import OLDEST_OPSET, PASS_THROUGH, SPLIT

CONSTANTS = frozenset({"Constant", "ConstantOfShape", "Shape"})
"""Computed before anything is bounded, as is every operator whose inputs are constants."""


def supported_operators() -> tuple[str, ...]:
    """Names of the ONNX operators with bounds, in some form at least, sorted.

    A form that has none (a factor that depends on the input, a mode of padding) is refused when
    the network is loaded, by the node's name.
    """
    bounded = {name for name in bounded_operators() if onnx.defs.has(name)}
    rewritten = (WRITERS, PIECEWISE, COMPOSED, CHOICES, PASS_THROUGH, SPLIT, CONSTANTS)
    return tuple(sorted(bounded.union(*rewritten)))


def opset_versions() -> tuple[int, int]:
    """The oldest and the newest ONNX opset that files may be written in."""
    return OLDEST_OPSET, onnx.defs.onnx_opset_version()
