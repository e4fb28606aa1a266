"""From the name of a data set to its examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from complete_verifier.data.errors import DataError
from complete_verifier.data.examples import Examples

_DIGITS = Path(__file__).resolve().parent / "digits"
_TORCHVISION = {
    "MNIST": "MNIST",
    "CIFAR": "CIFAR10",
    "CIFAR10": "CIFAR10",
    "CIFAR100": "CIFAR100",
}
_FOLDERS = ("", "datasets", "data")

Loader = Callable[[float | None], Sequence[Any]]
"""(eps) -> inputs, labels, highest, lowest, eps[, target]: a loader of the user's own.

Tensors or arrays; what the network reads, nothing is normalised after it. None is no limit. The
order, highest before lowest, is the one that published loaders have.
"""


def load_examples(name: str, places: Sequence[Path]) -> Examples:
    """The data set called `name`.

    Args:
        name: MNIST, CIFAR, CIFAR10 or CIFAR100 (test sets in torchvision's files); digits (200
            8x8 images that come with this package); or a folder with `inputs.npy` [N, ...] and
            `labels.npy` [N], and where the properties are boxes `lower.npy` and `upper.npy`.
        places: folders that files are looked for in.

    Raises:
        DataError: no such data set here, or malformed files.
    """
    if name == "digits":
        return _digits()
    if name in _TORCHVISION:
        return _torchvision(name, places)
    for place in places:
        if (place / name / "inputs.npy").is_file():
            return _arrays(place / name)
    known = ", ".join((*_TORCHVISION, "digits"))
    raise DataError(
        f"data.dataset: {name!r} is none of {known}, and no folder with inputs.npy and labels.npy "
        f"in {', '.join(map(str, places))}."
    )


def from_loader(name: str, loader: Loader, eps: float | None) -> Examples:
    """What a loader of the user's own gives; see `Loader`.

    Raises:
        DataError: it fails, or gives something else.
    """
    try:
        given = tuple(loader(eps))
    except Exception as error:
        raise DataError(f"data.dataset: {name} fails: {type(error).__name__}: {error}") from error
    if not 5 <= len(given) <= 6:
        raise DataError(
            f"data.dataset: {name}: expected inputs, labels, highest, lowest, eps and perhaps a "
            f"target, got {len(given)} values."
        )
    inputs, labels, highest, lowest, radius, *target = (_array(value) for value in given)
    if inputs is None or labels is None:
        raise DataError(f"data.dataset: {name}: inputs or labels are None.")
    return Examples(
        name=name,
        inputs=inputs,
        labels=labels.reshape(-1),
        lowest=lowest,
        highest=highest,
        eps=radius,
        targets=target[0].reshape(-1) if target and target[0] is not None else None,
        normalised=True,
    )


def _digits() -> Examples:
    """200 test images of the digits that scikit-learn bundles, of which pixels are 0 to 16."""
    return Examples(
        name="digits",
        inputs=_read(_DIGITS / "inputs.npy"),
        labels=_read(_DIGITS / "labels.npy"),
        divisor=16.0,
        lowest=np.zeros(()),
        highest=np.ones(()),
    )


def _arrays(folder: Path) -> Examples:
    """A folder of .npy files; bytes are taken for pixels, between 0 and 1 once divided by 255."""
    inputs = _read(folder / "inputs.npy")
    is_bytes = inputs.dtype == np.uint8
    lowest = np.zeros(()) if is_bytes else None
    highest = np.ones(()) if is_bytes else None
    if (folder / "lower.npy").is_file():
        lowest = _read(folder / "lower.npy")
    if (folder / "upper.npy").is_file():
        highest = _read(folder / "upper.npy")
    return Examples(
        name=folder.name,
        inputs=inputs,
        labels=_read(folder / "labels.npy"),
        divisor=255.0 if is_bytes else 1.0,
        lowest=lowest,
        highest=highest,
    )


def _torchvision(name: str, places: Sequence[Path]) -> Examples:
    """A test set of torchvision's, whose files it checks against their digests."""
    import torchvision.datasets

    reader = getattr(torchvision.datasets, _TORCHVISION[name])
    folders = [place / folder for place in places for folder in _FOLDERS]
    for folder in folders:
        try:
            found = reader(str(folder), train=False, download=False)
        except (RuntimeError, OSError):
            continue
        pixels = np.asarray(found.data)
        # MNIST has no axis of channels, CIFAR has it last.
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        labels = np.asarray(found.targets).astype(np.int64)
        return Examples(name, pixels, labels, 255.0, np.zeros(()), np.ones(()))
    looked = ", ".join(map(str, folders))
    raise DataError(
        f"data.dataset: the files of {name} (as torchvision lays them out) are in none of {looked}"
        ". Put them there or set general.root_path; data.dataset: digits needs no files."
    )


def _read(path: Path) -> np.ndarray:
    try:
        loaded: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: expected an array in .npy form: {error}") from error
    return loaded


def _array(value: object) -> np.ndarray | None:
    if value is None:
        return None
    detach = getattr(value, "detach", None)
    return np.asarray(value if detach is None else detach().cpu())
