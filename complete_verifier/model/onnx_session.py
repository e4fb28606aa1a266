"""Run an ONNX file with onnxruntime, the reference for what the file means."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_file import existing_file, read_bytes

FATAL_ONLY = 4
"""onnxruntime's log level; its errors are raised as well, and reported once, as ours."""


LARGEST_EXACT = 2**24
"""float32 counts no further."""


class OnnxSession:
    """One onnxruntime session on the CPU, one thread, silent.

    Several inputs are read from one vector, in the file's order; several outputs become one.

    Attributes:
        input_shape: The input's shape as the file states it, with open sizes set to 1; of several
            inputs (1, number of all their elements).
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
        self._path = found
        self._shapes = {
            value.name: tuple(n if isinstance(n, int) and n > 0 else 1 for n in value.shape)
            for value in self._session.get_inputs()
        }
        if len(self._shapes) == 1:
            if input_shape is not None:
                self._shapes = dict.fromkeys(self._shapes, input_shape)
            (self.input_shape,) = self._shapes.values()
        else:
            self.input_shape = (1, sum(math.prod(shape) for shape in self._shapes.values()))

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
        return np.stack([self._run(row) for row in rows])

    def _run(self, row: np.ndarray) -> np.ndarray:
        feeds, first = {}, 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            feeds[name] = row[first : first + size].reshape(shape)
            first += size
        try:
            outputs = self._session.run(None, feeds)
        except Exception as error:
            raise ModelError(f"{self._path}: onnxruntime fails on it: {_line(error)}") from error
        return np.concatenate([self._real(np.asarray(output)).reshape(-1) for output in outputs])

    def _real(self, output: np.ndarray) -> np.ndarray:
        """An output as real numbers; whole ones have to be exact in float32."""
        if output.dtype.kind not in "biu":
            return output
        if output.size and int(np.abs(output.astype(object)).max()) > LARGEST_EXACT:
            raise ModelError(f"{self._path}: an output is a whole number beyond 2^24.")
        return output.astype(np.float32)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
