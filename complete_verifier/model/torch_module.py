"""A PyTorch module as an ONNX file, so that it is read, checked and replayed like any network.

Tracing follows one run. A module whose path through its code depends on values would be exported
as that one path, and what is proven of it would not be about the module: such modules are refused,
by running the module once on tensors that have a shape and no values.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from complete_verifier.model.agreement import Recorded, check_agreement
from complete_verifier.model.errors import ModelError
from complete_verifier.model.onnx_session import OnnxSession

OPSET = 17


def write_onnx(module: nn.Module, input_shape: Sequence[int], path: Path, name: str) -> None:
    """Write `module` in eval mode to `path`, and compare the file with it on random inputs.

    Args:
        module: float32; left as it is. Its result is one tensor ``[1, ...]``.
        input_shape: of one input, without batch.
        name: what the module is called in messages.

    Raises:
        ModelError: the module does not run on such an input, chooses its path by values, is not
            float32, cannot be exported, or the file answers differently.
    """
    _check_precision(module, name)
    example = torch.zeros(1, *input_shape, device=_device(module))
    with _eval_mode(module):
        _check_path(module, example, name)
        _export(module, example, path, name)
        session = OnnxSession(path, tuple(example.shape))
        check_agreement(
            lambda rows: _rows(module, rows.reshape(rows.shape[0], *input_shape)),
            Recorded.of(session),
            name,
        )


def run_module(module: nn.Module, row: Tensor, input_shape: Sequence[int]) -> Tensor:
    """The module's outputs ``[O]`` in eval mode for one flat input ``[I]``, on the CPU."""
    with _eval_mode(module), torch.no_grad():
        value = row.reshape(1, *input_shape).to(_device(module))
        return _rows(module, value)[0].flatten().cpu()


def _rows(module: nn.Module, batch: Tensor) -> Tensor:
    """One by one, as a property speaks of one input."""
    device = _device(module)
    return torch.cat([module(row[None].to(device)).reshape(1, -1) for row in batch])


def _check_precision(module: nn.Module, name: str) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    other = {t.dtype for t in tensors if t.is_floating_point() and t.dtype != torch.float32}
    if other:
        raise ModelError(
            f"{name}: expected float32 parameters, got {', '.join(sorted(map(str, other)))}. "
            "Call .float() on the module."
        )


def _check_path(module: nn.Module, example: Tensor, name: str) -> None:
    """Refuse a module that looks at values to choose what it computes."""
    # Where the start of the program put off the kernels for such tensors, this loads them.
    importlib.util.find_spec("torch._dynamo")
    shapes_only = {
        key: tensor.detach().to("meta")
        for key, tensor in (*module.named_parameters(), *module.named_buffers())
    }
    try:
        with torch.device("meta"), torch.no_grad():
            result = torch.func.functional_call(module, shapes_only, (example.to("meta"),))
    except Exception as error:
        raise ModelError(
            f"{name}: it cannot be shown to compute the same function for all inputs; run on a "
            f"tensor of shape {list(example.shape)} without values it fails: {_line(error)}. Keep "
            "branches on values out of forward, and constants in buffers."
        ) from error
    if not isinstance(result, Tensor) or result.dim() == 0 or result.shape[0] != 1:
        got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ModelError(f"{name}: expected one output tensor with a batch axis of 1, got {got}.")


def _export(module: nn.Module, example: Tensor, path: Path, name: str) -> None:
    try:
        with warnings.catch_warnings():
            # The exporter announces its successor, and warns of every size it makes a constant.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (example,),
                str(path),
                opset_version=OPSET,
                input_names=["input"],
                output_names=["output"],
                dynamo=False,
            )
    except Exception as error:
        raise ModelError(f"{name}: it cannot be exported to ONNX: {_line(error)}") from error


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Every part in eval mode within the block, as it was after it."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _device(module: nn.Module) -> torch.device:
    tensor = next((t for t in (*module.parameters(), *module.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
