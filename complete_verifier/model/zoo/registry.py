"""Names of `model.name`, and the networks they stand for.

Layer sizes are those published with the checkpoints: oval20 and oval21 (cifar_model*), SDP
certification (cnn_4layer*, mnist_cnn_4layer), ERAN (*_conv_small, *_conv_big, mnist_6_100 ...),
Marabou (cifar_marabou_*), MIP-verification and MadryLab (Madry*), VNN-COMP 2021 (resnet2b, ...).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import nn

from complete_verifier.model.errors import ModelError
from complete_verifier.model.zoo.chain import chain
from complete_verifier.model.zoo.residual import Residual, ResidualShape

_MNIST = (1, 28, 28)
_CIFAR = (3, 32, 32)


@dataclass(frozen=True)
class Architecture:
    """A network without its parameters' values.

    Attributes:
        build: makes it, with fresh parameters.
        input_shape: of one input, without batch.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]


_WIDE = "c16k4s2p1 c32k4s2p1 f100 f10"
_BIG = "c32k3p1 c32k4s2p1 c64k3p1 c64k4s2p1 f512 f512 f10"
_SMALL = "c16k4s2 c32k4s2 f100 f10"
_CNN_B = "z1,2 c32k5s2 c128k4s2p1 f250 f10"


def _layers(width: int, hidden: int) -> str:
    """A multilayer perceptron with so many hidden layers."""
    return f"f{width} " * hidden + "f10"


_MNIST_CHAINS: Mapping[str, str] = {
    "mnist_cnn_4layer": _WIDE,
    "mnist_conv_small": _SMALL,
    "mnist_conv_big": _BIG,
    "mnist_6_100": _layers(100, 5),
    "mnist_6_200": _layers(200, 5),
    "mnist_9_100": _layers(100, 8),
    "mnist_9_200": _layers(200, 8),
    "mnist_fc": _layers(10, 2),
    "mnist_fc1": _layers(200, 5),
    "mnist_fc2": "f1024 " * 4 + "f100 f10",
    "mnist_fc3": "f1024 " * 6 + "f100 f10",
    **{f"mnist_fc_{hidden}_512": _layers(512, hidden) for hidden in range(3, 8)},
    "mnist_madry_secret": "c32k5p2 m2 c64k5p2 m2 f1024 f10",
    "MadryCNN": "c32k5p2 m2 c64k5p2 m2 f1024 f10",
    "MadryCNN_one_maxpool": "c32k5s2p2 c64k5p2 m2 f1024 f10",
    "MadryCNN_no_maxpool": "c32k5s2p2 c64k5s2p2 f1024 f10",
    "MadryCNN_tiny": "c4k5p2 m2 c8k5p2 m2 f128 f10",
    "MadryCNN_one_maxpool_tiny": "c4k5s2p2 c8k5p2 m2 f128 f10",
    "MadryCNN_no_maxpool_tiny": "c4k5s2p2 c8k5s2p2 f128 f10",
}

_CIFAR_CHAINS: Mapping[str, str] = {
    "cifar_model": "c8k4s2p1 c16k4s2p1 f100 f10",
    "cifar_model_base": "c8k4s2p1 c16k4s2p1 f100 f10",
    "cifar_model_deep": "c8k4s2p1 c8k3p1 c8k3p1 c8k4s2p1 f100 f10",
    "cifar_model_wide": _WIDE,
    **dict.fromkeys(
        ("cnn_4layer", "cnn_4layer_adv", "cnn_4layer_adv4", "cnn_4layer_mix", "cnn_4layer_mix4"),
        _WIDE,
    ),
    "cnn_4layer_b": _CNN_B,
    "cnn_4layer_b4": _CNN_B,
    "cifar_conv_small": _SMALL,
    "cifar_conv_big": _BIG,
    "cifar_marabou_small": "c8k4s2 c16k4s2 f128 f64 f10",
    "cifar_marabou_medium": "c16k4s2 c32k4s2 f128 f64 f10",
    "cifar_marabou_large": "c32k4s2 c64k4s2 f128 f64 f10",
    "cifar_conv1": "c8k4s2p1 c16k4s2p1 f200 f100 f10",
    "cifar_conv2": "c8k4s2p1 c16k4s2p1 c32k4s2p1 f200 f100 f10",
    "cifar_conv3": "c8k4p1 c16k4s2p1 c32k4s2p1 f200 f100 f10",
    "cifar_conv4": "c8k4s2p1 c16k4s2p1 f1024 f512 f10",
    "cifar_conv5": "c16k4s2p1 c32k4s2p1 f1024 f512 f10",
    "cifar_conv6": "c8k4s2p1 c16k4s2p1 c32k4s2p1 f512 f512 f10",
}

_RESIDUAL: Mapping[str, ResidualShape] = {
    "resnet2b": ResidualShape(8, 1, False, "dense"),
    "resnet4b": ResidualShape(16, 2, False, "dense"),
    **{
        f"cresnet{depth}_{width}_{classifier}{'_bn' if normalised else ''}": ResidualShape(
            width, stages, normalised, classifier
        )
        for (depth, stages, widths), classifier, normalised in itertools.product(
            ((5, 1, (4, 8, 16)), (7, 2, (4, 8))), ("dense", "avg"), (False, True)
        )
        for width in widths
    },
}

_ARCHITECTURES: Mapping[str, Architecture] = {
    **{
        name: Architecture(partial(chain, layers, _MNIST), _MNIST)
        for name, layers in _MNIST_CHAINS.items()
    },
    **{
        name: Architecture(partial(chain, layers, _CIFAR), _CIFAR)
        for name, layers in _CIFAR_CHAINS.items()
    },
    **{name: Architecture(partial(Residual, shape), _CIFAR) for name, shape in _RESIDUAL.items()},
}


def architecture_names() -> tuple[str, ...]:
    """Every name that `architecture` knows, sorted."""
    return tuple(sorted(_ARCHITECTURES))


def architecture(name: str) -> Architecture:
    """The network called `name`.

    Raises:
        ModelError: there is none of that name; lists what there is.
    """
    if name not in _ARCHITECTURES:
        raise ModelError(
            f"model.name: {name!r} is not known. Known are {', '.join(architecture_names())}; "
            'or give Customized("module", "function") and --extensions module.py.'
        )
    return _ARCHITECTURES[name]
