"""The network as the rest of the application sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from complete_verifier.model.constant_store import ConstantStore
from complete_verifier.model.errors import ModelError
from complete_verifier.model.host_memory import trim
from complete_verifier.model.onnx_file import read_input, read_onnx

if TYPE_CHECKING:
    from auto_LiRPA_patches.engine.graph import Graph
    from auto_LiRPA_patches.engine.upstream_node import BuildOptions
    from auto_LiRPA_patches.sharding.weights import WeightSource
    from complete_verifier.model.agreement import Recorded


@dataclass(frozen=True)
class Network:
    """A graph that can be run and bounded, and what its file says about its input."""

    graph: Graph
    input_shape: tuple[int, ...]
    """Shape of one input, no batch axis."""
    num_inputs: int
    num_outputs: int
    onnx_path: Path | None
    onnx_input_shape: tuple[int, ...]
    """The input's shape as the ONNX file states it, batch size 1."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns [B, num_outputs], differentiable in `x`.

        Args:
            x: [B, *input_shape] or [B, num_inputs].
        """
        if math.prod(x.shape[1:]) != self.num_inputs:
            raise ModelError(
                f"expected inputs of shape [B, {', '.join(map(str, self.input_shape))}] or "
                f"[B, {self.num_inputs}], got {list(x.shape)}."
            )
        agreed = self.graph.neurons.agreed
        x = agreed(x.to(device=self.graph.device, dtype=self.graph.precision))
        return agreed(self.graph.forward(x.reshape(x.shape[0], *self.input_shape)).flatten(1))


Read: TypeAlias = "tuple[Network, Recorded | None]"
"""A network, and onnxruntime's answers to compare it with."""


def _at_once(work: Callable[[], Read]) -> Read:
    return work()


def load_network(
    onnx_path: Path | str,
    weights: WeightSource,
    input_shape: Sequence[int] | None = None,
    check: bool = True,
    build: BuildOptions | None = None,
    in_turn: Callable[[Callable[[], Read]], Read] = _at_once,
) -> Network:
    """Read an ONNX file, build its graph with its weights in `weights`, and check the result.

    Args:
        onnx_path: `.onnx` or `.onnx.gz`.
        weights: Takes over every parameter; no other copy is kept. Where it keeps parts alone, or
            `build` splits layers by neuron, no parameter is whole in memory meanwhile.
        input_shape: `model.input_shape` of the config, e.g. [-1, 3, 32, 32].
        check: Compare with onnxruntime on random inputs.
        build: Precision, device and lower slopes of the graph; None is float32 on the CPU.
        in_turn: When to do the part that takes memory for more than one copy of the weights; it
            involves no other rank.

    Raises:
        ModelError: the file cannot be loaded as what it says.
        UnsupportedOperatorError: an operator cannot be bounded; names it and its node.
        RankMismatchError: the ranks read different files.
    """
    from complete_verifier.model.agreement import check_agreement

    network, answers = in_turn(
        lambda: _read_network(onnx_path, weights, input_shape, build, check=check)
    )
    weights.check_agreement()
    if answers is not None:
        check_agreement(network.forward, answers, str(network.onnx_path))
    return network


def _read_network(
    onnx_path: Path | str,
    weights: WeightSource,
    input_shape: Sequence[int] | None,
    build: BuildOptions | None,
    *,
    check: bool,
) -> Read:
    """The network, and onnxruntime's answers to compare it with; no other rank is involved."""
    from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
    from auto_LiRPA_patches.engine.build import build_graph
    from complete_verifier.model.normalise import normalise
    from complete_verifier.model.onnx_torch import to_torch

    answers = _Answers.of(onnx_path, input_shape) if check else _Answers()
    takes_parts = weights.copies or (build is not None and build.neuron_ranks.size > 1)
    file = read_onnx(onnx_path, input_shape, ConstantStore(on_disk=takes_parts))
    example = torch.zeros(1, *file.input.sample_shape)
    module = to_torch(normalise(file), example, str(file.path))
    graph = build_graph(build_bounded_module(module, example), weights, build)
    del module
    network = Network(
        graph=graph,
        input_shape=file.input.sample_shape,
        num_inputs=file.input.num_elements,
        num_outputs=math.prod(graph.output_shape),
        onnx_path=file.path,
        onnx_input_shape=file.input.shape,
    )
    if answers.failure is not None:
        raise answers.failure
    return network, answers.recorded


@dataclass(frozen=True)
class _Answers:
    """What onnxruntime says of a file, asked before there is another copy of the weights.

    Attributes:
        recorded: None without a check, or where it fails.
        failure: raised later: what is read here may have more to say about what is wrong.
    """

    recorded: Recorded | None = None
    failure: ModelError | None = None

    @classmethod
    def of(cls, onnx_path: Path | str, input_shape: Sequence[int] | None) -> _Answers:
        from complete_verifier.model.agreement import Recorded
        from complete_verifier.model.onnx_session import OnnxSession

        shape = read_input(onnx_path, input_shape).shape
        try:
            return cls(recorded=Recorded.of(OnnxSession(onnx_path, shape)))
        except ModelError as error:
            return cls(failure=error)
        finally:
            trim()
