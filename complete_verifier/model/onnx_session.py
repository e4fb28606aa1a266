"""Run an ONNX file with onnxruntime, the reference for what the file means."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import existing_file, read_bytes

FATAL_ONLY = 4
"""onnxruntime's log level; its errors are raised as well, and reported once, as ours."""


class OnnxSession:
    """One onnxruntime session on the CPU, one thread, silent.

    Attributes:
        input_shape: The input's shape as the file states it, with open sizes set to 1.
    """

    def __init__(self, path: Path | str, input_shape: tuple[int, ...] | None = None) -> None:
        """Args: `input_shape` fills in sizes that the file leaves open; None sets them to 1."""
        import onnxruntime

        found = existing_file(path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        # By path where possible, so that weights kept in files beside the model are found.
        source = read_bytes(found) if found.suffix == ".gz" else str(found)
        try:
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise ModelError(f"{found}: onnxruntime cannot load it: {_line(error)}") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            raise ModelError(f"{found}: expected one input, got {len(inputs)}.")
        self._path = found
        self._name = inputs[0].name
        sizes = inputs[0].shape
        stated = tuple(size if isinstance(size, int) and size > 0 else 1 for size in sizes)
        self.input_shape = stated if input_shape is None else input_shape

    def run(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the outputs in float32, [B, num_outputs].

        Args:
            inputs: [B, num_inputs]; cast to float32. Always run one by one: a property speaks of
                one input, and some files that leave the batch size open answer wrongly for more.
        """
        rows = np.ascontiguousarray(inputs, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != math.prod(self.input_shape):
            raise ModelError(
                f"{self._path}: expected inputs of {math.prod(self.input_shape)} elements, "
                f"got shape {list(rows.shape)}."
            )
        return np.stack([self._run(row.reshape(self.input_shape)).reshape(-1) for row in rows])

    def _run(self, network_input: np.ndarray) -> np.ndarray:
        try:
            return self._session.run(None, {self._name: network_input})[0]
        except Exception as error:
            raise ModelError(f"{self._path}: onnxruntime fails on it: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
