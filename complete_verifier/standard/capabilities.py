"""`abcrown supports CAPABILITY`: what is printed for each capability of the standard."""

from __future__ import annotations

from collections.abc import Callable, Mapping

# About values of the network's real-valued function; see the README on what a verdict means.
_ELEMENT_TYPES = ("real", "float32")
# The oldest and the newest; files of version 1.0 are read by --vnnlib_path.
_VNNLIB_VERSIONS = ("2.0", "2.0")


def _operators() -> tuple[str, ...]:
    from complete_verifier.model.operators import supported_operators

    return supported_operators()


def _opsets() -> tuple[str, ...]:
    from complete_verifier.model.operators import opset_versions

    return tuple(map(str, opset_versions()))


CAPABILITIES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "--onnx-opset-versions": _opsets,
    "--onnx-element-types": lambda: _ELEMENT_TYPES,
    "--onnx-operators": _operators,
    "--vnnlib-versions": lambda: _VNNLIB_VERSIONS,
    "--hidden-node-theories": lambda: ("NH",),
    "--multiple-input-output-theories": lambda: ("SIO", "MIO"),
    "--multiple-network-theories": lambda: ("SNET",),
    "--multiple-node-comparison-theories": lambda: ("SNC",),
    # Bounds on inputs, and linear constraints on outputs.
    "--arithmetic-complexity-theories": lambda: ("BND", "OUTC"),
    "--optimised-disjunctive-reasoning": lambda: ("true",),
    "--serialise-assignments": lambda: ("false",),
}
"""Each capability by its flag, with the lines that answer it."""
