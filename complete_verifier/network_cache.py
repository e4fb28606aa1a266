"""The network of the current instance, kept for the next one when that asks about the same file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from complete_verifier.model.errors import ModelError
from complete_verifier.model.host_memory import give_back
from complete_verifier.model.network import Network, Read, load_network
from complete_verifier.model.onnx_file import existing_file
from complete_verifier.session import Session
from complete_verifier.turns import Turns


class NetworkCache:
    """Holds at most one network, so that memory never holds the weights of two."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns = Turns.on_each_host(session.ranks.world, session.launch)
        self._path: Path | None = None
        self._network: Network | None = None

    def network(self, onnx: Path) -> Network:
        """The network of the file `onnx`, loaded unless it is the one held. A collective.

        Raises:
            ModelError: the file cannot be loaded as what it says.
            UnsupportedOperatorError: an operator cannot be bounded.
            RanksDisagreeError: the ranks read files of different content.
        """
        if self._network is None or self._path != onnx:
            self.forget()
            self._network = self._load(onnx)
            self._path = onnx
        return self._network

    def explain(self, error: Exception) -> None:
        """See `WeightSource.explain`."""
        if self._network is not None:
            self._network.graph.weights.explain(error)

    def forget(self) -> None:
        """Let go of the network held, and of what was fetched ahead for it."""
        if self._network is not None:
            self._network.graph.weights.settle()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the network held after a failure, of which other ranks may not know."""
        self._path = self._network = None

    def _load(self, onnx: Path) -> Network:
        config = self._session.config
        build = BuildOptions(
            precision=torch.float64 if config.general.double_fp else torch.float32,
            device=self._session.device,
            relu_lower_slope=config.solver.crown.activation_bound_option,
            neuron_ranks=self._session.ranks.tp,
            refine_split=config.parallel.tp_intermediate == "exact",
        )
        self._session.ranks.world.agree_same(f"the content of {onnx.name}", self._content(onnx))
        weights = self._session.weights()

        def work_and_give_back(work: Callable[[], Read]) -> Read:
            read = work()
            give_back(weights.full_bytes)
            return read

        return load_network(
            onnx,
            weights,
            config.model.input_shape,
            build=build,
            in_turn=lambda work: self._turns.take(
                f"loading {onnx.name}", partial(work_and_give_back, work)
            ),
        )

    def _content(self, onnx: Path) -> str:
        """A hash of the file's bytes; nothing to compare with one rank.

        Weights in files beside it are compared as they are cut into slices.
        """
        if self._session.ranks.world.size == 1:
            return ""
        try:
            digest = hashlib.sha256()
            with existing_file(onnx).open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
            return f"SHA-256 {digest.hexdigest()}"
        except (OSError, ModelError) as error:
            return f"unreadable: {error}"
