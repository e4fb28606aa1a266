"""Constants of a traced module: shared with it, and independent of the network's input."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def initialise(self: Any, ori_name: str, value: Tensor, perturbation: Any = None) -> None:
    """Replaces `BoundBuffers.__init__`; `value` is kept as it is, without a copy."""
    from auto_LiRPA.operators.leaf import BoundInput

    BoundInput.__init__(self, ori_name, None, perturbation)
    self.from_input = False
    self.register_buffer("buffer", value.detach())
