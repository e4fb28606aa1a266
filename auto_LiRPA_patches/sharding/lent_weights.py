"""Weights of a module, for as long as parts of them are being taken."""

from __future__ import annotations

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.weights import WeightHandle


class LentWeights(OneRankWeights):
    """Hands out each tensor as the module has it: in its own dtype, and where it lies.

    Who takes a part converts and moves that part, to the handle's dtype. A tensor may lie in a
    file: whatever outlives the module is a copy.
    """

    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        self._tensors.append(tensor)
