"""Keys of the section `model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from complete_verifier.config.callables import NamedCallable
from complete_verifier.config.option import JsonText, Section, option


def _batch_first(shape: tuple[int, ...] | None) -> str | None:
    """The shape with its batch axis, where `shape` lacks it or holds a size below 1."""
    if shape is None:
        return None
    has_batch = len(shape) >= 2 and shape[0] in (-1, 1)
    if has_batch and all(size >= 1 for size in shape[1:]):
        return None
    sizes = shape[1:] if has_batch else shape
    if sizes and all(size >= 1 for size in sizes):
        return str([-1, *sizes])
    return "the batch size -1, then sizes of at least 1, as in [-1, 3, 32, 32]"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Section):
    """The network and how its file is read."""

    SECTION: ClassVar[str] = "model"

    name: str | None = option(None, "--model", "Name of a PyTorch model definition.")
    path: str | None = option(None, "--load_model", "Checkpoint of the PyTorch model.")
    onnx_path: str | None = option(None, "--onnx_path", "ONNX file; a .gz sibling serves too.")
    onnx_path_prefix: str = option(
        "", "--onnx_path_prefix", "Text put before each ONNX path of a batch."
    )
    cache_onnx_conversion: bool = option(
        False, "--cache_onnx_conversion", "Keep the converted model on disk for the next run."
    )
    onnx_quirks: JsonText | None = option(
        None, "--onnx_quirks", "Workarounds asked of the ONNX converter."
    )
    input_shape: tuple[int, ...] | None = option(
        None,
        "--input_shape",
        "Input shape with the batch first, as in [-1, 3, 32, 32].",
        expectation=_batch_first,
    )
    onnx_loader: NamedCallable = option(
        NamedCallable("default_onnx_and_vnnlib_loader"),
        "--onnx_loader",
        "Function that reads the ONNX and VNN-LIB files.",
    )
    onnx_optimization_flags: tuple[str, ...] = option(
        (), "--onnx_optimization_flags", "Rewrites of the ONNX graph; one name or a list."
    )
    onnx_vnnlib_joint_optimization_flags: str | tuple[str, ...] = option(
        "none",
        "--onnx_vnnlib_joint_optimization_flags",
        "Rewrites of network and property together; one name or a list.",
    )
    check_optimized: bool = option(
        False, "--check_optimized", "Compare with the rewritten ONNX file, not the original."
    )
    flatten_final_output: bool = option(
        False, "--flatten_final_output", "Flatten the output; this is always done."
    )
    optimize_graph: NamedCallable | None = option(
        None, "--optimize_graph", "Function that rewrites the bounded graph."
    )
    with_jacobian: bool = option(
        False, "--model_with_jacobian", "The model computes its own Jacobian."
    )
    bound_opts: JsonText | None = option(
        None, "--bound_opts", "Options handed to auto_LiRPA's bounded module."
    )
