"""Real networks: each loads, and what each method claims of it survives sampling.

A failure means that a network of a published benchmark no longer loads, or that a bound is not
finite, out of order, or contradicted by a point of the box.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from auto_LiRPA_patches import registry
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network, load_network
from complete_verifier.specification import Clause, Region, read_vnnlib
from tests.regression.user_runs import BENCHMARKS

pytestmark = [
    pytest.mark.benchmarks,
    pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=f"no benchmarks at {BENCHMARKS}"),
]

CATEGORIES = (
    "vnncomp2021/cifar10_resnet",
    "vnncomp2021/eran",
    "vnncomp2021/marabou-cifar10",
    "vnncomp2022/acasxu",
    "vnncomp2022/collins_rul_cnn",
    "vnncomp2022/mnist_fc",
    "vnncomp2022/oval21",
    "vnncomp2022/reach_prob_density",
    "vnncomp2022/rl_benchmarks",
    "vnncomp2022/sri_resnet_a",
    "vnncomp2022/test",
    "vnncomp2022/tllverifybench",
    "vnncomp2023/cgan",
    "vnncomp2023/dist_shift",
    "vnncomp2023/ml4acopf",
    "vnncomp2023/nn4sys",
    "vnncomp2023/vit",
    "vnncomp2023/yolo",
)
NETWORKS = [
    pytest.param(path, id=f"{category.split('/')[1]}-{path.name.removesuffix('.onnx.gz')}")
    for category in CATEGORIES
    for path in sorted((BENCHMARKS / category).rglob("*.onnx.gz"))
]
METHODS = ("ibp", "crown", "alpha-crown")
# CROWN of every neuron behind a generator takes a minute, of a detector's 21 125 cells longer.
CHEAPER = {
    "cgan": ("ibp", "forward+crown"),
    "vit": ("ibp", "crown"),
    "yolo": ("ibp", "crown"),
}
# Wide enough for outputs to move, narrow enough that few neurons are unstable.
RADIUS = {
    "acasxu": 0.02,
    "cifar10_resnet": 1e-4,
    "cgan": 1e-4,
    "marabou-cifar10": 1e-4,
    "sri_resnet_a": 1e-4,
    "eran": 3e-4,
    "yolo": 1e-5,
}
USUAL_RADIUS = 1e-3
MOST_OUTPUTS = 8  # a detector has 21 125


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    was_patched = bool(registry.applied())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small networks; more threads wait for each other on a busy machine
    registry.apply()
    yield
    torch.set_num_threads(threads)
    if not was_patched:
        registry.revert()


def center_of(path: Path, num_inputs: int) -> np.ndarray:
    """The middle of the category's first property that fits the network, else of [0, 1]."""
    category = next(BENCHMARKS / name for name in CATEGORIES if name in str(path))
    for line in (category / "instances.csv").read_text().splitlines():
        onnx, vnnlib, _ = line.split(",")
        if Path(onnx).name != path.name.removesuffix(".gz"):
            continue
        file = category / vnnlib
        if Path(f"{file}.gz").exists() or file.exists():
            region = read_vnnlib(file).regions[0]
            return (region.lower + region.upper) / 2
    return np.full(num_inputs, 0.5)


def chosen_outputs(num_outputs: int) -> np.ndarray:
    """At most `MOST_OUTPUTS` outputs, spread evenly."""
    return np.unique(np.linspace(0, num_outputs - 1, min(num_outputs, MOST_OUTPUTS)).astype(int))


def both_sides(num_outputs: int) -> tuple[Clause, ...]:
    """Clauses whose margins are the lower bounds of y and of -y, for the chosen outputs."""
    chosen = chosen_outputs(num_outputs)
    rows = np.zeros((2 * chosen.size, num_outputs))
    rows[np.arange(chosen.size), chosen] = 1.0
    rows[chosen.size + np.arange(chosen.size), chosen] = -1.0
    return tuple(Clause(coefficients=row[None], rhs=np.zeros(1)) for row in rows)


def output_bounds(network: Network, region: Region, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The method's lower and upper bounds of every chosen output."""
    settings = BoundSettings(
        method=method, alpha=AlphaOptions(iterations=2), prune_after_crown=False
    )
    bounds = verify_region(network, region, settings)
    margins = np.array(bounds.alpha_crown if method == "alpha-crown" else bounds.crown)
    count = chosen_outputs(network.num_outputs).size
    assert margins.shape == (2 * count,)
    return margins[:count], -margins[count:]


def sampled_range(network: Network, region: Region) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest chosen outputs over points of the box, half of them corners."""
    rng = np.random.default_rng(0)
    low, high = region.float32_inner_box()
    shape = (60, network.num_inputs)
    points = np.concatenate(
        [rng.uniform(low, high, size=shape), np.where(rng.random(shape) < 0.5, low, high)]
    ).astype(np.float32)
    with torch.no_grad():
        outputs = network.forward(torch.from_numpy(np.clip(points, low, high))).double().numpy()
    outputs = outputs[:, chosen_outputs(network.num_outputs)]
    return outputs.min(axis=0), outputs.max(axis=0)


@pytest.mark.parametrize("path", NETWORKS)
def test_every_network_loads_and_its_bounds_survive_sampling(path: Path) -> None:
    network = load_network(path, OneRankWeights())
    center = center_of(path, network.num_inputs)
    clauses = both_sides(network.num_outputs)
    radius = next((RADIUS[name] for name in RADIUS if name in path.parts), USUAL_RADIUS)
    region = Region(center - radius, center + radius, clauses)
    least, largest = sampled_range(network, region)
    # float32 sums of up to a few thousand terms, over a dozen layers.
    noise = 1e-5 * np.maximum(1, np.maximum(np.abs(least), np.abs(largest)))
    methods = next((CHEAPER[name] for name in CHEAPER if name in path.parts), METHODS)
    found = {method: output_bounds(network, region, method) for method in methods}
    for method, (lower, upper) in found.items():
        assert np.isfinite(lower).all() and np.isfinite(upper).all(), method
        assert (lower <= upper + noise).all(), method
        assert (lower <= least + noise).all() and (upper >= largest - noise).all(), method
    if methods == METHODS:
        assert (found["crown"][0] <= found["alpha-crown"][0] + noise).all()
        assert (found["crown"][1] >= found["alpha-crown"][1] - noise).all()
    assert (largest > least).any(), "a box in which nothing changes tests nothing"


# -- figures of mnist_fc -----------------------------------------------------------------------


def mnist_margins(layers: int, epsilon: str, settings: BoundSettings) -> tuple[float, float]:
    """Worst margin after CROWN and after α-CROWN of prop_0."""
    folder = BENCHMARKS / "vnncomp2022" / "mnist_fc"
    network = load_network(folder / "onnx" / f"mnist-net_256x{layers}.onnx", OneRankWeights())
    (region,) = read_vnnlib(folder / "vnnlib" / f"prop_0_{epsilon}.vnnlib").regions
    bounds = verify_region(network, region, settings)
    return min(bounds.crown), min(bounds.alpha_crown, default=float("nan"))


@pytest.mark.parametrize(("layers", "worst"), [(2, 0.340795), (4, 0.972930), (6, 0.950687)])
def test_crown_reproduces_the_published_worst_margin(layers: int, worst: float) -> None:
    crown, _ = mnist_margins(layers, "0.03", BoundSettings(method="crown"))
    assert crown == pytest.approx(worst, abs=1e-5)


@pytest.mark.parametrize(("layers", "at_least"), [(2, -1.70), (4, -2.25)])
def test_alpha_crown_is_as_tight_as_a_plain_prototype(layers: int, at_least: float) -> None:
    settings = BoundSettings(alpha=AlphaOptions(iterations=100), bounds=BoundOptions())
    crown, alpha = mnist_margins(layers, "0.05", settings)
    assert alpha >= at_least and alpha > crown
