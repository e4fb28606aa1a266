"""Run an ONNX file with onnxruntime, the reference for what the file means."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import existing_file, read_bytes

ERRORS_ONLY = 3


class OnnxSession:
    """One onnxruntime session on the CPU, one thread, silent below errors.

    Attributes:
        input_shape: The input's shape as the file states it, with open sizes set to 1.
        any_batch_size: Whether dimension 0 is open.
    """

    def __init__(self, path: Path | str, input_shape: tuple[int, ...] | None = None) -> None:
        """Args: `input_shape` fills in sizes that the file leaves open; None sets them to 1."""
        import onnxruntime

        found = existing_file(path)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
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
        sizes = list(inputs[0].shape)
        stated = tuple(size if isinstance(size, int) and size > 0 else 1 for size in sizes)
        self.input_shape = stated if input_shape is None else input_shape
        self.any_batch_size = len(sizes) > 1 and not isinstance(sizes[0], int)

    def run(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the outputs in float32, [B, num_outputs].

        Args:
            inputs: [B, num_inputs]; cast to float32. Run at once if the file leaves the batch
                size open, else one by one.
        """
        rows = np.ascontiguousarray(inputs, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != math.prod(self.input_shape):
            raise ModelError(
                f"{self._path}: expected inputs of {math.prod(self.input_shape)} elements, "
                f"got shape {list(rows.shape)}."
            )
        if self.any_batch_size:
            batches = [rows.reshape(-1, *self.input_shape[1:])]
        else:
            batches = [row.reshape(self.input_shape) for row in rows]
        outputs = [self._run(batch) for batch in batches]
        return np.concatenate([output.reshape(-1) for output in outputs]).reshape(len(rows), -1)

    def _run(self, batch: np.ndarray) -> np.ndarray:
        try:
            return self._session.run(None, {self._name: batch})[0]
        except Exception as error:
            raise ModelError(f"{self._path}: onnxruntime fails on it: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
