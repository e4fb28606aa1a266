"""Compare a loaded network with onnxruntime before anything is proven about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_session import OnnxSession

NUM_INPUTS = 20
TOLERANCE = 1e-4
"""On |ours - onnxruntime| / max(1, |onnxruntime|); both compute in float32."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """onnxruntime's answers to the inputs of `check_agreement`, without its copy of the weights."""

    input_shape: tuple[int, ...]
    outputs: np.ndarray
    """[NUM_INPUTS, num_outputs]."""

    @classmethod
    def of(cls, session: OnnxSession) -> Recorded:
        """Run the session; it is not needed afterwards."""
        shape = session.input_shape
        return cls(shape, session.run(_random_inputs(int(np.prod(shape)))))

    def run(self, inputs: np.ndarray) -> np.ndarray:
        """Returns the answers; `inputs` are those they were recorded for."""
        return self.outputs


def check_agreement(
    forward: Callable[[Tensor], Tensor], session: OnnxSession | Recorded, where: str
) -> float:
    """Returns the worst relative difference over random inputs.

    `forward` ([B, num_inputs] -> [B, num_outputs]) gets all inputs as one batch whatever the file
    says about batch sizes, so that a batch size baked into the loaded network shows up here.

    Raises:
        ModelError: more than `TOLERANCE`, another number of outputs, or a value that is not finite.
    """
    inputs = _random_inputs(int(np.prod(session.input_shape)))
    expected = session.run(inputs)
    try:
        with torch.no_grad():
            got = forward(torch.from_numpy(inputs)).flatten(1).double().cpu().numpy()
    except (RuntimeError, IndexError, TypeError) as error:
        raise ModelError(
            f"{where}: the loaded network fails on a batch of {NUM_INPUTS} inputs: "
            f"{' '.join(str(error).split())}"
        ) from error
    if got.shape != expected.shape:
        raise ModelError(
            f"{where}: expected outputs of shape {list(expected.shape)} as from onnxruntime, "
            f"got {list(got.shape)} from the loaded network."
        )
    with np.errstate(invalid="ignore"):  # infinite outputs differ by NaN, which is refused
        worst = float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected))))
    if not worst <= TOLERANCE:
        raise ModelError(
            f"{where}: the loaded network differs from onnxruntime by {worst:.3g} relative "
            f"(at most {TOLERANCE:g} allowed) on {NUM_INPUTS} random inputs; "
            "nothing can be proven about it."
        )
    return worst


def _random_inputs(num_inputs: int) -> np.ndarray:
    """[NUM_INPUTS, num_inputs] float32: one half in [0, 1], like images, the other in [-1, 1]."""
    generator = np.random.default_rng(0)
    inputs = generator.random((NUM_INPUTS, num_inputs), dtype=np.float32)
    inputs[NUM_INPUTS // 2 :] = 2 * inputs[NUM_INPUTS // 2 :] - 1
    return inputs
