"""Small residual networks for CIFAR-10 (VNN-COMP 2021, cifar10_resnet, and their relatives).

A convolution, one or two stages of two residual blocks, and a classifier: two fully connected
layers (dense), or an average over the image and one (avg). Names of the parts are those of the
keys in published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_BLOCKS_PER_STAGE = 2
_HIDDEN = 100
_CLASSES = 10


@dataclass(frozen=True)
class ResidualShape:
    """The sizes of one network.

    Attributes:
        width: channels of the first convolution; every stage has twice as many.
        stages: 1 or 2; each halves height and width.
        normalised: batch normalisation after every convolution, which then have no bias.
        classifier: what follows the stages, dense or avg.
    """

    width: int
    stages: int
    normalised: bool
    classifier: str


class Block(nn.Module):
    """``relu(conv2(relu(conv1(x))) + shortcut(x))``."""

    def __init__(self, given: int, made: int, stride: int, normalised: bool) -> None:
        super().__init__()
        bias = not normalised
        self.conv1 = nn.Conv2d(given, made, 3, stride=stride, padding=1, bias=bias)
        self.bn1 = _normalisation(made, normalised)
        self.conv2 = nn.Conv2d(made, made, 3, padding=1, bias=bias)
        self.bn2 = _normalisation(made, normalised)
        self.shortcut = nn.Sequential()
        if stride != 1 or given != made:
            self.shortcut.append(nn.Conv2d(given, made, 1, stride=stride, bias=bias))
            if normalised:
                self.shortcut.append(nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


class Residual(nn.Module):
    """One network of the family, for images [3, 32, 32]."""

    def __init__(self, shape: ResidualShape) -> None:
        super().__init__()
        normalised = shape.normalised
        self.conv1 = nn.Conv2d(3, shape.width, 3, stride=2, padding=1, bias=not normalised)
        self.bn1 = _normalisation(shape.width, normalised)
        channels, side = shape.width, 16
        self._stages: list[str] = []
        for number in range(1, shape.stages + 1):
            blocks = nn.Sequential()
            for place in range(_BLOCKS_PER_STAGE):
                stride = 2 if place == 0 else 1
                blocks.append(Block(channels, 2 * shape.width, stride, normalised))
                channels = 2 * shape.width
            self.add_module(f"layer{number}", blocks)
            self._stages.append(f"layer{number}")
            side //= 2
        self._dense = shape.classifier == "dense"
        if self._dense:
            self.linear1 = nn.Linear(channels * side * side, _HIDDEN)
            self.linear2 = nn.Linear(_HIDDEN, _CLASSES)
        else:
            self.avg2d = nn.AvgPool2d(4)
            self.linear = nn.Linear(channels * (side // 4) ** 2, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        for name in self._stages:
            x = self.get_submodule(name)(x)
        if self._dense:
            x = self.linear2(torch.relu(self.linear1(x.flatten(1))))
            return x
        return self.linear(self.avg2d(x).flatten(1))


def _normalisation(channels: int, wanted: bool) -> nn.Module:
    """Without parameters where there is none, so that a state_dict has no key for it."""
    return nn.BatchNorm2d(channels) if wanted else nn.Identity()
