"""The network of the current instance, kept for the next one when that asks about the same file."""

from __future__ import annotations

from pathlib import Path

import torch

from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from complete_verifier.model.network import Network, load_network
from complete_verifier.session import Session


class NetworkCache:
    """Holds at most one network, so that memory never holds the weights of two."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._path: Path | None = None
        self._network: Network | None = None

    def network(self, onnx: Path) -> Network:
        """The network of the file `onnx`, loaded unless it is the one held.

        Raises:
            ModelError: the file cannot be loaded as what it says.
            UnsupportedOperatorError: an operator cannot be bounded.
        """
        if self._network is None or self._path != onnx:
            self.forget()
            self._network = self._load(onnx)
            self._path = onnx
        return self._network

    def forget(self) -> None:
        """Let go of the network held."""
        self._path = self._network = None

    def _load(self, onnx: Path) -> Network:
        config = self._session.config
        build = BuildOptions(
            precision=torch.float64 if config.general.double_fp else torch.float32,
            device=self._session.device,
            relu_lower_slope=config.solver.crown.activation_bound_option,
        )
        shape = config.model.input_shape
        return load_network(onnx, self._session.weights(), shape, build=build)
