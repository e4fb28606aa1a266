"""Robustness properties around test images: candidates from an attack, VNN-LIB text, selection.

A property says: no input within epsilon (L-infinity, inside [0, 1]) of the image is given another
class. The attack here only places the candidates' radii; which of them are proven, violated or
left open is for the verifier to say (`select`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# How a candidate was decided; the example holds some of each.
KINDS = ("crown", "alpha-crown", "open", "violated")

# Radii tried, as fractions of the smallest one at which the attack succeeds.
FRACTIONS = (0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.1)
RADIUS_STEP = 0.01


@dataclass(frozen=True)
class Candidate:
    """One property of one network: `image` (index in the test set) keeps class `label`."""

    network: str
    image: int
    label: int
    epsilon: float

    @property
    def onnx(self) -> str:
        """Path of the network, relative to the folder of the example."""
        return f"onnx/{self.network}.onnx"

    @property
    def vnnlib(self) -> str:
        """Path of the property, relative to the folder of the example."""
        return f"vnnlib/{self.network}_image_{self.image}_eps_{self.epsilon:.3f}.vnnlib"


def attacked(layers: nn.Module, image: Tensor, label: int, epsilon: float) -> bool:
    """Return whether 50 signed gradient steps from 8 random points change the class of `image`.

    Args:
        layers: network, [B, *shape] to [B, classes].
        image: one input, [*shape], values in [0, 1].
        label: the class to be kept.
        epsilon: L-infinity radius.
    """
    lower, upper = (image - epsilon).clamp(0, 1), (image + epsilon).clamp(0, 1)
    generator = torch.Generator().manual_seed(0)
    points = lower + (upper - lower) * torch.rand(8, *image.shape, generator=generator)
    for _ in range(50):
        points.requires_grad_(True)
        outputs = layers(points)
        others = outputs.clone()
        others[:, label] = -torch.inf
        gap = others.amax(1) - outputs[:, label]
        if bool((gap > 0).any()):
            return True
        (gradient,) = torch.autograd.grad(gap.sum(), points)
        points = torch.clamp(points.detach() + epsilon / 8 * gradient.sign(), lower, upper)
    return False


def attack_radius(layers: nn.Module, image: Tensor, label: int) -> float:
    """Return the smallest multiple of `RADIUS_STEP` at which `attacked` holds, at most 1."""
    steps = round(1 / RADIUS_STEP)
    radii = (RADIUS_STEP * step for step in range(1, steps + 1))
    return next((radius for radius in radii if attacked(layers, image, label, radius)), 1.0)


def candidates(
    network: str, layers: nn.Module, images: Tensor, labels: Tensor, count: int
) -> list[Candidate]:
    """Return candidates around the first `count` correctly classified images.

    Args:
        network: name of the network, for the paths.
        layers: the network itself, in eval mode.
        images: test set, [N, *shape].
        labels: classes, [N].
        count: number of images used.
    """
    with torch.no_grad():
        correct = torch.nonzero(layers(images).argmax(1) == labels).flatten()[:count].tolist()
    found = []
    for index in correct:
        label = int(labels[index])
        radius = attack_radius(layers, images[index], label)
        # Three decimals keep the bounds of the box exact in the file: pixels are sixteenths.
        radii = sorted({round(radius * fraction, 3) for fraction in FRACTIONS})
        found += [Candidate(network, index, label, radius) for radius in radii]
    return found


def vnnlib_text(candidate: Candidate, image: Tensor, num_classes: int) -> str:
    """Return the property as VNN-LIB: the box, and some other class scored at least as high.

    Args:
        candidate: which property.
        image: its image, flat, [I], values in [0, 1].
        num_classes: number of outputs.
    """
    label, epsilon = candidate.label, candidate.epsilon
    pixels = image.tolist()
    lines = [f"; Digits test image {candidate.image}, class {label}, epsilon {epsilon:.3f}.", ""]
    lines += [f"(declare-const X_{index} Real)" for index in range(len(pixels))]
    lines += [f"(declare-const Y_{index} Real)" for index in range(num_classes)]
    lines += ["", "; Within epsilon of the image and inside [0, 1]:"]
    for index, pixel in enumerate(pixels):
        lines.append(f"(assert (>= X_{index} {max(pixel - epsilon, 0):.4f}))")
        lines.append(f"(assert (<= X_{index} {min(pixel + epsilon, 1):.4f}))")
    lines += ["", f"; some other class scores at least as high as class {label}:", "(assert (or"]
    others = (other for other in range(num_classes) if other != label)
    lines += [f"  (and (>= Y_{other} Y_{label}))" for other in others]
    return "\n".join([*lines, "))", ""])


def select(
    offered: Sequence[Candidate], kinds: Mapping[Candidate, str]
) -> list[tuple[Candidate, str]]:
    """Choose one candidate of each of `KINDS` per network, around a new image each time.

    Args:
        offered: candidates in order of preference, grouped by network.
        kinds: what the verifier made of each; a candidate without one is passed over.

    Returns:
        (candidate, kind), network by network in the order of `KINDS`.

    Raises:
        LookupError: if a network has no candidate of some kind; offer more images.
    """
    chosen = []
    for network in dict.fromkeys(candidate.network for candidate in offered):
        used: set[int] = set()
        for kind in KINDS:
            match = next(
                (
                    candidate
                    for candidate in offered
                    if candidate.network == network
                    and kinds.get(candidate) == kind
                    and candidate.image not in used
                ),
                None,
            )
            if match is None:
                raise LookupError(f"{network}: no unused image with a property of kind {kind}")
            used.add(match.image)
            chosen.append((match, kind))
    return chosen
