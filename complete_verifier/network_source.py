"""The network a config names: an ONNX file, or a PyTorch model that becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from complete_verifier.config import Config, ConfigError, InputPaths
from complete_verifier.config.callables import parse_callable
from complete_verifier.extensions import Extensions
from complete_verifier.model.errors import ModelError
from complete_verifier.model.torch_module import write_onnx
from complete_verifier.model.zoo import architecture

_MOST_LISTED = 3


@dataclass(frozen=True)
class NetworkSource:
    """An ONNX file and what the network is called; an empty name is the file's path."""

    onnx: Path
    name: str = ""


def network_source(
    config: Config,
    paths: InputPaths,
    extensions: Extensions,
    folder: Path,
    shape: tuple[int, ...] | None = None,
) -> NetworkSource:
    """Find the network; a PyTorch model is written to `folder` as ONNX.

    Args:
        shape: of one input, where the data tell it.

    Raises:
        ConfigError: no network is named, or two are; a file is absent.
        ModelError: the model is unknown, or its parameters do not fit.
    """
    model = config.model
    if model.onnx_path and model.name:
        raise ConfigError("model.name: expected it or model.onnx_path, got both. Remove one.")
    if model.onnx_path:
        named = model.onnx_path_prefix + model.onnx_path
        return NetworkSource(paths.find(named, "model.onnx_path"))
    if not model.name:
        raise ConfigError(
            "model.onnx_path: expected a network to verify, got none. Give --onnx_path, or "
            "--model and --load_model for a PyTorch model, or --csv_name for a batch."
        )
    module, own_shape = _built(model.name, extensions)
    if model.path:
        _load_parameters(module, paths.find(model.path, "model.path"))
    elif own_shape is not None:
        raise ConfigError(
            f"model.path: expected the parameters of {model.name}, got none. Give --load_model."
        )
    configured = None if model.input_shape is None else model.input_shape[1:]
    chosen = configured or shape or own_shape
    if chosen is None:
        raise ConfigError(
            f"model.input_shape: expected the shape of one input of {model.name}, got none. Set "
            "it, for example [-1, 3, 32, 32]."
        )
    name = model.name if not model.path else f"{model.name} {Path(model.path).name}"
    target = folder / "model.onnx"
    write_onnx(module, chosen, target, name)
    return NetworkSource(target, name)


def _built(name: str, extensions: Extensions) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The module and the input shape it was made for, None where it does not tell."""
    named = parse_callable(name)
    if named is None or not named.module:
        found = architecture(name)
        return found.build(), found.input_shape
    module = extensions.function(named, "model.name")()
    if not isinstance(module, nn.Module):
        raise ModelError(f"model.name: {named}: expected a module, got {type(module).__name__}.")
    return module, None


def _load_parameters(module: nn.Module, path: Path) -> None:
    """Fill in a state_dict; nothing in the file is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"model.path: {path}: expected a state_dict as torch.save writes it: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    values = _state_dict(content)
    if values is None:
        raise ModelError(f"model.path: {path}: expected a state_dict, got another object.")
    own = module.state_dict()
    shapes = {key: tuple(value.shape) for key, value in own.items()}
    given = {key: tuple(value.shape) for key, value in values.items()}
    optional = {key for key in shapes if key.endswith("num_batches_tracked")}
    wrong = [
        f"{key}: expected {list(shapes[key]) if key in shapes else 'no such key'}, got "
        f"{list(given[key]) if key in given else 'none'}"
        for key in sorted({*shapes, *given})
        if shapes.get(key) != given.get(key) and not (key in optional and key not in given)
    ]
    if wrong:
        more = f" and {len(wrong) - _MOST_LISTED} more" if len(wrong) > _MOST_LISTED else ""
        raise ModelError(
            f"model.path: {path} does not fit the model: {'; '.join(wrong[:_MOST_LISTED])}{more}."
        )
    module.load_state_dict({**own, **values})


def _state_dict(content: Any) -> Mapping[str, Tensor] | None:
    """The parameters in a file: a state_dict, or one under "state_dict" or in a list of one."""
    while True:
        if isinstance(content, (list, tuple)) and len(content) >= 1:
            content = content[0]
        elif isinstance(content, Mapping) and "state_dict" in content:
            content = content["state_dict"]
        else:
            break
    if not isinstance(content, Mapping) or not content:
        return None
    if not all(isinstance(value, Tensor) for value in content.values()):
        return None
    return content
