"""Stand-ins for networks that are not at hand, each with one property: what they are, and files.

The networks of the published experiments on CIFAR-100 (VNN-COMP 2024) and the wide MLPs are not
distributed with this project. A stand-in has the same kind of layers, input and output, weights
drawn from a seed, and a property placed where the experiment wants it: between what CROWN and what
α-CROWN prove, or just beyond α-CROWN. Placing is done by the bias of one class, which moves all
margins of that class alike.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from onnx_graph import save_onnx
from stand_in_networks import Draw, Stage, Widths, residual_network, wide_network
from torch import Tensor, nn

_GRID = 256  # pixels are multiples of 1/256, radii of 1/1024: exact in float32 and in the file
_DARKEST, _BRIGHTEST = 51, 205  # of 256, so that no box leaves [0, 1]


@dataclass(frozen=True)
class StandIn:
    """One network with one property, all of it determined by the fields.

    Attributes:
        name: of the files.
        build: makes the network, untrained.
        shape: of one input.
        outputs: number of classes.
        radius: of the L-infinity box around a drawn image, a multiple of 1/1024.
        shift: added to the bias of the class that the property is about.
        rivals: the property says that so many other classes, those scored highest at the image,
            never reach that class; None = all others.
    """

    name: str
    build: Callable[[], nn.Sequential]
    shape: tuple[int, ...]
    outputs: int
    radius: float
    shift: float
    rivals: int | None = None

    @property
    def image(self) -> Tensor:
        """The middle of the box, [*shape]."""
        drawn = np.random.default_rng(7).integers(_DARKEST, _BRIGHTEST + 1, self.shape)
        return torch.from_numpy((drawn / _GRID).astype(np.float32))

    def network(self) -> tuple[nn.Sequential, int, list[int]]:
        """The network, the class that the property is about, and that class's rivals."""
        layers = self.build().eval()
        with torch.no_grad():
            scores = layers(self.image.unsqueeze(0))[0]
            order = [int(place) for place in scores.argsort(descending=True)]
            last = layers[-1]
            if not isinstance(last, nn.Linear):
                raise TypeError(f"{self.name}: expected a linear last layer, got {last}")
            last.bias[order[0]] += self.shift
        rivals = order[1:] if self.rivals is None else order[1 : 1 + self.rivals]
        return layers, order[0], sorted(rivals)


_EARLY = (
    Stage(16, 1, Draw(0.5), shortcut=1.0),
    Stage(64, 1, Draw(0.3, offset=0.3), shortcut=0.4),
)
_SMALL = (*_EARLY, Stage(64, 1, Draw(0.05, offset=0.5), shortcut=0.4))
_MEDIUM = (
    *_EARLY,
    Stage(128, 2, Draw(0.05, offset=0.5), shortcut=0.4),
    Stage(256, 3, Draw(0.03, offset=0.5), shortcut=0.5),
)
_LARGE = (
    *_EARLY,
    Stage(256, 2, Draw(0.05, offset=0.5), shortcut=0.4),
    Stage(512, 5, Draw(0.02, offset=0.5), shortcut=0.5),
)
_HIDDEN = Draw(1.4)
_IMAGE = (3, 32, 32)


def _residual(
    name: str, stages: tuple[Stage, ...], radius: float, shift: float, **more: int
) -> StandIn:
    return StandIn(
        name, lambda: residual_network(stages, 100, seed=0), _IMAGE, 100, radius, shift, **more
    )


def _wide(width: int, depth: int, radius: float, shift: float) -> StandIn:
    widths = Widths(width, depth)
    return StandIn(
        f"mlp_{width}x{depth}",
        lambda: wide_network(widths, _HIDDEN, seed=0),
        (widths.inputs,),
        widths.outputs,
        radius,
        shift,
        rivals=1,
    )


STAND_INS = {
    stand_in.name: stand_in
    for stand_in in (
        _residual("resnet_small", _SMALL, 8 / 1024, 0.0),
        _residual("resnet_medium", _MEDIUM, 16 / 1024, -0.19445),
        _residual("resnet_large", _LARGE, 30 / 1024, -0.11048),
        _wide(512, 3, 1 / 1024, 0.0),
        _wide(4096, 4, 2 / 1024, 1.257),
    )
}


def write_stand_in(stand_in: StandIn, folder: Path) -> str:
    """Write ``NAME.onnx`` and ``NAME.vnnlib`` below `folder`; neither is ever seen half written.

    Returns:
        One sentence about what was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers, label, rivals = stand_in.network()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        onnx, vnnlib = (Path(scratch) / f"{stand_in.name}.{kind}" for kind in ("onnx", "vnnlib"))
        save_onnx(layers, stand_in.shape, stand_in.outputs, onnx)
        vnnlib.write_text(property_text(stand_in, label, rivals), encoding="utf-8")
        for path in (onnx, vnnlib):
            os.replace(path, folder / path.name)
    count = sum(parameter.numel() for parameter in layers.parameters())
    return f"{stand_in.name}: {count / 1e6:.1f} million parameters, written to {folder}"


def property_text(stand_in: StandIn, label: int, rivals: list[int]) -> str:
    """The property as VNN-LIB: the box, and some rival scored at least as high as `label`."""
    pixels = stand_in.image.double().flatten().tolist()
    radius = stand_in.radius
    what = f"class {label} against {len(rivals)} others, radius {radius!r}"
    lines = [f"; {stand_in.name}, a stand-in with drawn weights: {what}.", ""]
    lines += [f"(declare-const X_{index} Real)" for index in range(len(pixels))]
    lines += [f"(declare-const Y_{index} Real)" for index in range(stand_in.outputs)]
    lines.append("")
    for index, pixel in enumerate(pixels):
        lines.append(f"(assert (>= X_{index} {pixel - radius!r}))")
        lines.append(f"(assert (<= X_{index} {pixel + radius!r}))")
    lines += ["", "(assert (or"]
    lines += [f"  (and (>= Y_{rival} Y_{label}))" for rival in rivals]
    return "\n".join([*lines, "))", ""])
