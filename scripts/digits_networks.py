"""The digits data and the three architectures of the embedded example, trained from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from onnx_graph import Residual
from sklearn.datasets import load_digits
from torch import Tensor, nn

NUM_CLASSES = 10
NUM_TRAINING_IMAGES = 1400  # of 1797; the rest is the test set


@dataclass(frozen=True)
class Digits:
    """scikit-learn's bundled 8x8 digits, values in [0, 1]; images are flat, [N, 64] float32."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Architecture:
    """A network to be trained: its name, the shape of one input, and its untrained layers."""

    name: str
    input_shape: tuple[int, ...]
    layers: nn.Sequential


def load_data(seed: int) -> Digits:
    """Return the digits, shuffled by `seed` and cut into a training and a test set."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images = torch.from_numpy(pixels[order].astype(np.float32) / 16)
    targets = torch.from_numpy(labels[order].astype(np.int64))
    cut = NUM_TRAINING_IMAGES
    return Digits(images[:cut], targets[:cut], images[cut:], targets[cut:])


def mlp() -> Architecture:
    """Return 64-100-100-100-10 with ReLU."""
    layers = nn.Sequential(
        nn.Linear(64, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, NUM_CLASSES),
    )
    return Architecture("mlp", (64,), layers)


def conv() -> Architecture:
    """Return two convolutions and two fully connected layers, 832 ReLU in all."""
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, NUM_CLASSES),
    )
    return Architecture("conv", (1, 8, 8), layers)


def resnet() -> Architecture:
    """Return a stem, one residual block with a BatchNormalization in its body, and a classifier."""
    body = nn.Sequential(
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
    )
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        Residual(body, nn.Conv2d(8, 16, 1, stride=2)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, NUM_CLASSES),
    )
    return Architecture("resnet", (1, 8, 8), layers)


ARCHITECTURES = (mlp, conv, resnet)


def train(architecture: Architecture, data: Digits, *, seed: int, epochs: int = 30) -> None:
    """Train the layers of `architecture` in place: Adam, batches of 64, cross entropy.

    The same seed gives the same weights on one machine with one thread; another processor or
    version of PyTorch rounds differently, which is why the resulting files are committed.
    """
    generator = torch.Generator().manual_seed(seed)
    images = data.train_images.reshape(-1, *architecture.input_shape)
    optimiser = torch.optim.Adam(architecture.layers.parameters(), lr=1e-3)
    architecture.layers.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(64):
            optimiser.zero_grad()
            outputs = architecture.layers(images[batch])
            nn.functional.cross_entropy(outputs, data.train_labels[batch]).backward()
            optimiser.step()
    architecture.layers.eval()


def accuracy(architecture: Architecture, data: Digits) -> float:
    """Return the fraction of test images that the network classifies correctly."""
    with torch.no_grad():
        outputs = architecture.layers(data.test_images.reshape(-1, *architecture.input_shape))
    return (outputs.argmax(1) == data.test_labels).float().mean().item()
