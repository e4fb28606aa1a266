"""Networks that are one layer after the other, from a line of text.

The words of a line, each a layer:

    c16k4s2p1   convolution: 16 channels, kernel 4, stride 2, padding 1 (s1 and p0 may be left out)
    f100        fully connected layer of 100 neurons; the first one flattens what comes before it
    m2          maximum over windows of 2, stride 2
    z1,2        zeros around the image: 1 left and above, 2 right and below
    b           batch normalisation of what comes before it

A ReLU follows every c and f (and its b), but the last. Positions in the `nn.Sequential` are those
of the layers in this order, so that the keys of a state_dict say the same as those of the
published checkpoints.
"""

from __future__ import annotations

import math
import re

from torch import nn

_CONV = re.compile(r"c(\d+)k(\d+)(?:s(\d+))?(?:p(\d+))?")
_FULL = re.compile(r"f(\d+)")
_POOL = re.compile(r"m(\d+)")
_ZEROS = re.compile(r"z(\d+),(\d+)")


def chain(layers: str, input_shape: tuple[int, ...]) -> nn.Sequential:
    """The network of a line, with fresh parameters.

    Args:
        layers: as the head of this file says.
        input_shape: [channels, height, width].

    Raises:
        ValueError: a word of the line is no layer.
    """
    parts: list[nn.Module] = []
    shape = input_shape
    words = layers.split()
    for position, word in enumerate(words):
        if word == "b":
            parts.append(nn.BatchNorm2d(shape[0]) if len(shape) > 1 else nn.BatchNorm1d(shape[0]))
        elif (match := _CONV.fullmatch(word)) is not None:
            channels, kernel = int(match[1]), int(match[2])
            stride, padding = int(match[3] or 1), int(match[4] or 0)
            parts.append(nn.Conv2d(shape[0], channels, kernel, stride=stride, padding=padding))
            sides = ((size + 2 * padding - kernel) // stride + 1 for size in shape[1:])
            shape = (channels, *sides)
        elif (match := _FULL.fullmatch(word)) is not None:
            if len(shape) > 1:
                parts.append(nn.Flatten())
                shape = (math.prod(shape),)
            parts.append(nn.Linear(shape[0], int(match[1])))
            shape = (int(match[1]),)
        elif (match := _POOL.fullmatch(word)) is not None:
            parts.append(nn.MaxPool2d(int(match[1])))
            shape = (shape[0], *(size // int(match[1]) for size in shape[1:]))
        elif (match := _ZEROS.fullmatch(word)) is not None:
            near, far = int(match[1]), int(match[2])
            parts.append(nn.ZeroPad2d((near, far, near, far)))
            shape = (shape[0], *(size + near + far for size in shape[1:]))
        else:
            raise ValueError(f"{word!r} is no layer")
        following = words[position + 1] if position + 1 < len(words) else ""
        if word[0] in "cfb" and following and following != "b":
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)
