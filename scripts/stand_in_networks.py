"""Residual and wide networks with weights drawn from a seed: shapes of the field, no training.

Trained networks leave few neurons unstable in their deep layers, and verifiers live on that. Drawn
weights of the usual size would make nearly all neurons unstable. Deep layers are therefore drawn
small beside their biases, of which half are well above zero and half well below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from onnx_graph import Residual
from torch import Tensor, nn


@dataclass(frozen=True)
class Draw:
    """How weights and biases of a layer are spread.

    Attributes:
        gain: standard deviation of a weight, times the root of the fan-in.
        offset: every bias is moved away from zero by so much, up or down by lot.
        spread: standard deviation of a bias before that.
    """

    gain: float
    offset: float = 0.0
    spread: float = 0.1


class SeededLayers:
    """Makes layers whose weights follow from a seed, in the order in which they are asked for.

    numpy draws them: its streams are the same on every machine.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def conv(
        self, channels: tuple[int, int], kernel: int, draw: Draw, stride: int = 1
    ) -> nn.Conv2d:
        """A convolution from ``channels[0]`` to ``channels[1]``, padded by half the kernel."""
        layer = nn.Conv2d(*channels, kernel, stride=stride, padding=kernel // 2)
        self._fill(layer.weight, layer.bias, draw)
        return layer

    def linear(self, inputs: int, outputs: int, draw: Draw) -> nn.Linear:
        """A fully connected layer."""
        layer = nn.Linear(inputs, outputs)
        self._fill(layer.weight, layer.bias, draw)
        return layer

    def _fill(self, weight: Tensor, bias: Tensor | None, draw: Draw) -> None:
        fan_in = weight[0].numel()
        values = self._random.standard_normal(tuple(weight.shape), dtype=np.float32)
        weight.data = torch.from_numpy(values).mul_(draw.gain / math.sqrt(fan_in))
        if bias is not None:
            drawn = self._random.standard_normal(tuple(bias.shape))
            biases = draw.spread * drawn + draw.offset * np.sign(drawn)
            bias.data = torch.from_numpy(biases.astype(np.float32))


@dataclass(frozen=True)
class Stage:
    """Residual blocks of one width; the first one halves the plane unless it is the first stage.

    Attributes:
        width: channels.
        blocks: number of residual blocks, two 3x3 convolutions each.
        body: of the blocks' 3x3 convolutions.
        shortcut: gain of the 1x1 convolution around a block that changes the shape.
    """

    width: int
    blocks: int
    body: Draw
    shortcut: float


def residual_network(
    stages: tuple[Stage, ...], outputs: int, *, seed: int, side: int = 32
) -> nn.Sequential:
    """A residual network over ``[B, 3, side, side]``: stem with stride 2, stages, classifier."""
    make = SeededLayers(seed)
    width, plane = stages[0].width, side // 2
    stem = make.conv((3, width), 3, Draw(1.0), 2)
    if stem.bias is not None:
        stem.bias.data -= _GREY * stem.weight.data.sum((1, 2, 3))  # as if inputs were normalised
    layers: list[nn.Module] = [stem, nn.ReLU()]
    for number, stage in enumerate(stages):
        for block in range(stage.blocks):
            stride = 2 if block == 0 and number > 0 else 1
            layers += [_block(make, width, stage, stride), nn.ReLU()]
            width, plane = stage.width, plane // stride
    layers += [nn.Flatten(), make.linear(width * plane * plane, outputs, Draw(1.0))]
    return nn.Sequential(*layers)


_GREY = 0.5


def _block(make: SeededLayers, width: int, stage: Stage, stride: int) -> Residual:
    body = nn.Sequential(
        make.conv((width, stage.width), 3, stage.body, stride),
        nn.ReLU(),
        make.conv((stage.width, stage.width), 3, stage.body),
    )
    if stride == 1 and width == stage.width:
        return Residual(body, nn.Identity())
    return Residual(body, make.conv((width, stage.width), 1, Draw(stage.shortcut), stride))


@dataclass(frozen=True)
class Widths:
    """A fully connected network ``inputs - width x depth - outputs``."""

    width: int
    depth: int
    inputs: int = 784
    outputs: int = 10


def wide_network(widths: Widths, hidden: Draw, *, seed: int) -> nn.Sequential:
    """``depth`` hidden layers of ``width`` with ReLU; `hidden` is of all but the first of them."""
    make = SeededLayers(seed)
    layers: list[nn.Module] = []
    size = widths.inputs
    for number in range(widths.depth):
        layers.append(make.linear(size, widths.width, hidden if number else Draw(1.0)))
        layers.append(nn.ReLU())
        size = widths.width
    layers.append(make.linear(size, widths.outputs, Draw(1.0)))
    return nn.Sequential(*layers)
