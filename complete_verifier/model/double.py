"""The network in double precision: a second opinion where float32 cannot tell outputs apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from complete_verifier.model.normalise import normalise
from complete_verifier.model.onnx_file import read_onnx
from complete_verifier.model.onnx_torch import to_torch

_MOST_BYTES = 256 << 20


def run_double(
    onnx_path: Path | str, x_flat: np.ndarray, input_shape: tuple[int, ...] | None = None
) -> np.ndarray | None:
    """Returns the network's output for one input, [num_outputs] float64.

    The file is read anew: what is at hand may be one rank's share of it, in float32. Takes memory
    for three copies of the weights, and the time of a load; so it is asked only in doubt.

    Args:
        onnx_path: a file that has been loaded before.
        x_flat: [num_inputs] float64.
        input_shape: fills in sizes that the file leaves open.

    Returns:
        None where there is no second opinion: an operator computes in float32 alone, or the weights
        are too large to have them thrice beside what is in memory.

    Raises:
        ModelError: the file cannot be loaded any more.
    """
    file = read_onnx(onnx_path, input_shape)
    shape = (1, *file.input.sample_shape)
    if sum(content.nbytes for content in file.graph.constants.values()) > _MOST_BYTES:
        return None
    module = to_torch(normalise(file), torch.zeros(shape), str(file.path)).double()
    row = torch.from_numpy(np.asarray(x_flat, dtype=np.float64)).reshape(shape)
    try:
        with torch.no_grad():
            output: torch.Tensor = module(row)
    except RuntimeError:  # operands of two precisions
        return None
    return output.flatten().double().numpy()
