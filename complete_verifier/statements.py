"""Properties around the examples of a data set, as the sections `data` and `specification` say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from complete_verifier.config import Config, ConfigError, InputPaths
from complete_verifier.config.callables import parse_callable
from complete_verifier.data import Examples, load_examples
from complete_verifier.data.load import from_loader
from complete_verifier.extensions import Extensions
from complete_verifier.specification import Region, Robustness
from complete_verifier.specification.robustness import Demand, lp_region

_DEMANDS: dict[str, Demand] = {
    "verified-acc": "verified-acc",
    "runnerup": "runnerup",
    "clean-runnerup": "clean-runnerup",
    "all-positive": "all-positive",
}


def read_examples(config: Config, paths: InputPaths, extensions: Extensions) -> Examples:
    """The data set of `data.dataset`, normalised by `data.mean` and `data.std` later.

    Raises:
        ConfigError: a loader that was not allowed.
        DataError: no such data set, or malformed files.
    """
    name = str(config.data.dataset)
    named = parse_callable(name)
    if named is not None and named.module:
        loader = extensions.function(named, "data.dataset")
        return from_loader(str(named), loader, config.specification.epsilon)
    roots = () if paths.root is None else (paths.root,)
    return load_examples(name, (Path(), *paths.config_folders, *roots))


def statements(config: Config, paths: InputPaths, examples: Examples) -> dict[int, Robustness]:
    """One statement per selected example, by its index in the data set.

    Raises:
        ConfigError: no radius, a wrong index, or mean and std that do not fit.
    """
    return {
        index: _statement(config, examples, index) for index in _selected(config, paths, examples)
    }


def _selected(config: Config, paths: InputPaths, examples: Examples) -> list[int]:
    data, count = config.data, len(examples.labels)
    if data.select_instance is not None:
        chosen = [int(index) for index in data.select_instance]
    elif data.data_idx_file is not None:
        chosen = _listed(paths.find(data.data_idx_file, "data.data_idx_file"))
        chosen = chosen[data.start : data.end]
    else:
        chosen = list(range(data.start, min(data.end, count)))
    wrong = next((index for index in chosen if not 0 <= index < count), None)
    if wrong is not None or not chosen:
        what = "none" if wrong is None else str(wrong)
        raise ConfigError(
            f"data: expected examples between 0 and {count - 1} of {examples.name}, got {what}. "
            "Correct data.start, data.end or data.select_instance."
        )
    return chosen


def _listed(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text(encoding="utf-8").replace(",", " ").split()]
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.data_idx_file: {path}: expected integers: {error}") from None


def _statement(config: Config, examples: Examples, index: int) -> Robustness:
    specification = config.specification
    mean, std = _per_coordinate(config, examples)
    center = ((examples.input(index) - mean) / std).reshape(-1)
    low, high = examples.limits(index)
    lowest, highest = (((side - mean) / std).reshape(-1) for side in (low, high))
    label = int(examples.labels[index])
    targets = None if examples.targets is None else (int(examples.targets[index]),)
    if specification.type == "box":
        if not (np.isfinite(lowest).all() and np.isfinite(highest).all()):
            raise ConfigError(
                f"specification.type: box: {examples.name} gives no finite bounds for example "
                f"{index}. Put lower.npy and upper.npy beside its inputs."
            )
        region, what = Region(lowest, highest, ()), "box"
    else:
        radius = _radius(config, examples, index)
        region = lp_region(
            center,
            radius,
            specification.norm,
            scale=std.reshape(-1),
            lowest=lowest,
            highest=highest,
        )
        what = f"l{specification.norm:g} eps {float(np.max(radius)):g}"
    demand = _DEMANDS[specification.robustness_type]
    return Robustness(
        center=center,
        region=region,
        label=label,
        demand=demand,
        targets=targets,
        source=f"{examples.name}[{index}] {what} {demand}",
        shape=examples.shape,
    )


def _radius(config: Config, examples: Examples, index: int) -> np.ndarray | float:
    if examples.eps is None:
        if config.specification.epsilon is None:
            raise ConfigError(
                "specification.epsilon: expected a radius around the inputs of data.dataset, got "
                "none. Set it."
            )
        return config.specification.epsilon
    radius: np.ndarray = np.broadcast_to(
        np.asarray(examples.eps, dtype=np.float64), examples.inputs.shape
    )[index].reshape(-1)
    same = bool((radius == radius[0]).all())
    return float(radius[0]) if same else radius


def _per_coordinate(config: Config, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each coordinate, [*shape]; per channel is the first axis."""
    shape = examples.shape
    if examples.normalised:
        return np.zeros(shape), np.ones(shape)
    found = []
    for key, given in (("mean", config.data.mean), ("std", config.data.std)):
        values = np.atleast_1d(np.asarray(given, dtype=np.float64))
        if values.size not in (1, shape[0]):
            raise ConfigError(
                f"data.{key}: expected one number or one for each of {shape[0]} channels, got "
                f"{values.size}."
            )
        channels = values.reshape(-1, *(1,) * (len(shape) - 1))
        found.append(np.broadcast_to(channels, shape))
    return found[0], found[1]
