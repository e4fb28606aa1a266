"""Replay a counterexample: what the ONNX file itself answers, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from complete_verifier.model.onnx_session import OnnxSession


def run_onnx(
    onnx_path: Path | str, x_flat: np.ndarray, input_shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Returns the network's output for one input, [num_outputs] float32.

    Args:
        onnx_path: The file as the user named it; a `.gz` sibling serves too.
        x_flat: [num_inputs], in the order of the flattened ONNX input; cast to float32, so a
            caller that checks box membership must check the cast values.
        input_shape: fills in sizes that the file leaves open; None sets them to 1.

    Raises:
        ModelError: the file cannot be loaded, or `x_flat` has the wrong size.
    """
    return OnnxSession(onnx_path, input_shape).run(np.asarray(x_flat).reshape(1, -1))[0]
