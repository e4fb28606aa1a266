"""Replay a saved counterexample against the files it speaks of."""

from __future__ import annotations

from pathlib import Path

from complete_verifier.attack.counterexample import confirm
from complete_verifier.attack.save import read_counterexample
from complete_verifier.model.replay import run_onnx
from complete_verifier.specification import read_vnnlib


def replays(onnx: Path, vnnlib: Path, counterexample: Path) -> bool:
    """Return whether a saved input violates the property, by `confirm`'s rules.

    Only the inputs of the file count; outputs are computed anew by onnxruntime.

    Raises:
        ResultError: the counterexample file cannot be read.
        ModelError, SpecificationError: so for the network or the property, or their number of
            inputs is another.
    """
    inputs = read_counterexample(counterexample).inputs
    regions = read_vnnlib(vnnlib).regions
    return any(
        len(region.lower) == len(inputs) and confirm(onnx, region, inputs, run_onnx) is not None
        for region in regions
    )
