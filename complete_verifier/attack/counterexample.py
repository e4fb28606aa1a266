"""Decide whether a candidate is a counterexample: the only way to a `sat`.

A candidate counts when all of this holds, each compared exactly and without tolerance:
  1. it lies in the region's box (`SearchBox.holds`);
  2. the ONNX file itself, run by onnxruntime in float32, gives finite outputs for it;
  3. those outputs satisfy a clause of the region, evaluated in exact arithmetic;
  4. where they do so by a margin within float32's rounding, a float64 run's outputs do so too.

Number 4 is for outputs that differ by less than float32 can tell apart: where the two precisions
disagree, nobody knows what the real network does, and the honest answer is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from complete_verifier.attack.box import SearchBox
from complete_verifier.specification import Region

RunOnnx = Callable[[Path | str, np.ndarray], np.ndarray]
"""(onnx_path, [I] float32) -> [O]; `complete_verifier.model.replay.run_onnx`."""

RunDouble = Callable[[Path | str, np.ndarray], np.ndarray | None]
"""(onnx_path, [I] float64) -> [O] float64; `complete_verifier.model.double.run_double`.

None where the network cannot be run so."""

# Of a row's size |c| . |y| + |rhs|: a margin above this is no matter of float32's rounding.
_CLEAR = 1e-4


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input that violates the property, with the outputs onnxruntime gives for it."""

    inputs: np.ndarray
    """[I] float32, flat, in the order of the ONNX input."""

    outputs: np.ndarray
    """[O] float32, flat."""

    num_rounded_inputs: int = 0
    """Inputs whose stated interval holds no float32, so that a member's rounding was fed."""


def confirm(
    onnx_path: Path | str,
    region: Region,
    candidate: np.ndarray,
    run_onnx: RunOnnx,
    run_double: RunDouble | None = None,
) -> Counterexample | None:
    """Return the counterexample that `candidate` ([I] float32) is, or None if it is none.

    Args:
        onnx_path: the network as the user named it.
        region: box and unsafe set the candidate was found in.
        run_onnx: replays one input in float32.
        run_double: second opinion in float64, asked only where the margin is within rounding.

    Raises:
        ValueError: `candidate` is not float32 or has the wrong number of inputs.
    """
    box = SearchBox.of(region)
    if box is None or not box.holds(candidate):
        return None
    outputs = np.asarray(run_onnx(onnx_path, candidate), dtype=np.float32).reshape(-1)
    if not region.violated_by(outputs):
        return None
    if run_double is not None and not _is_clear(region, outputs):
        exact = run_double(onnx_path, candidate.astype(np.float64))
        if exact is not None and not region.violated_by(exact):
            return None
    return Counterexample(
        inputs=candidate.copy(),
        outputs=outputs,
        num_rounded_inputs=int(np.count_nonzero(box.rounded)),
    )


def _is_clear(region: Region, outputs: np.ndarray) -> bool:
    """Whether some clause holds by more than rounding may account for, in every row."""
    y = outputs.astype(np.float64)
    for clause in region.clauses:
        with np.errstate(over="ignore", invalid="ignore"):
            excess = clause.coefficients @ y - clause.rhs
            size = np.abs(clause.coefficients) @ np.abs(y) + np.abs(clause.rhs)
        if bool((excess < -_CLEAR * size).all()):
            return True
    return False
