"""The networks whose bounds must not depend on the number of ranks, and how they are computed.

A case's result is bytes per method: the float32 bounds, or for branch and bound the fingerprint of
the open subproblems (which splits, and the bits of their margins) after every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations, interval_rows
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.pool import DomainPool
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import load_network
from complete_verifier.specification import read_vnnlib

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT.parent / "shared" / "benchmarks"
ITERATIONS = 20
_TILE_ROWS = 128

Found = dict[str, bytes]
Wrap = Callable[[WeightSource], WeightSource]


@dataclass(frozen=True)
class BoundCase:
    """IBP, CROWN and α-CROWN of some outputs over a box around a seeded input.

    Attributes:
        make: the network, its weights in the given source.
        radius: of the box.
        outputs: so many outputs are bounded from both sides.
        methods: of "ibp", "crown", "alpha-crown".
        iterations: of α-CROWN.
        file: needed for it; None = made here.
    """

    make: Callable[[WeightSource], Graph]
    radius: float
    outputs: int = 10
    methods: tuple[str, ...] = ("ibp", "crown", "alpha-crown")
    iterations: int = ITERATIONS
    file: Path | None = None

    def run(self, weights: WeightSource) -> Found:
        """The bounds' bytes per method, ``[2 outputs, 1]`` each: lower, then negated upper."""
        graph = self.make(weights)
        generator = torch.Generator().manual_seed(7)
        center = torch.rand((1, *graph.input_shape), generator=generator)
        box = Interval(center - self.radius, center + self.radius)
        count = int(torch.tensor(graph.output_shape).prod())
        unit = torch.eye(count)[: self.outputs].view(-1, *graph.output_shape)
        rows, options, found = SpecRows(torch.cat([unit, -unit])), BoundOptions(), {}
        found["ibp"] = interval_rows(Relaxations(graph, box), rows)
        if "crown" in self.methods:
            state = crown_relaxations(graph, box, options)
            found["crown"] = crown_bounds(state, rows, options)
        if "alpha-crown" in self.methods:
            steps = AlphaOptions(iterations=self.iterations, early_stop=False)
            alpha = optimize_alpha(state, rows, lambda lower: lower > -torch.inf, options, steps)
            if alpha.iterations != self.iterations or not bool(
                (alpha.lower >= found["crown"]).all()
            ):
                raise ValueError("α-CROWN did not run, or is looser than CROWN")
            found["alpha-crown"] = alpha.lower
        weights.settle()
        return {method: found[method].numpy().tobytes() for method in self.methods}


@dataclass(frozen=True)
class BranchCase:
    """Rounds of branch and bound under `bab.force_synchronous`.

    Attributes:
        file: the network.
        vnnlib: the property.
        rounds, batch, iterations, root_iterations: how far it goes.
    """

    file: Path
    vnnlib: Path
    rounds: int = 6
    batch: int = 64
    iterations: int = 5
    root_iterations: int = 10

    def run(self, weights: WeightSource) -> Found:
        """The root's bounds, and per change of the pool the fingerprint of what is open."""
        network = load_network(self.file, weights, check=False)
        bounds = BoundOptions(tile_rows=_TILE_ROWS)
        settings = BoundSettings(
            bounds=bounds, alpha=AlphaOptions(iterations=self.root_iterations, early_stop=False)
        )
        (region,) = read_vnnlib(self.vnnlib).regions
        root = verify_region(network, region, settings)
        if root.root is None:
            raise ValueError(f"{self.vnnlib}: bounds leave nothing to branch on")
        context = BabContext(network=network, region=region, bounds=bounds, confirm=lambda *_: None)
        steps = BetaOptions(iterations=self.iterations)
        manner = BabSettings(batch_size=self.batch, beta=steps, max_iterations=self.rounds)
        with _fingerprints() as rounds:
            end = activation_branch_and_bound(root.root, context, replace(manner, synchronous=True))
        weights.settle()
        if end.rounds < 2:
            raise ValueError(f"{self.vnnlib}: {end.rounds} rounds say nothing of branching")
        return {
            "root": repr((root.crown, root.alpha_crown)).encode(),
            "branch and bound": repr((end.rounds, end.domains_visited, rounds)).encode(),
        }


@contextmanager
def _fingerprints() -> Iterator[list[int]]:
    """Note the pool's fingerprint after every addition."""
    noted: list[int] = []
    add = DomainPool.add

    def noting(pool: DomainPool, *arguments: Any) -> None:
        add(pool, *arguments)
        noted.append(pool.fingerprint)

    DomainPool.add = noting  # type: ignore[assignment,method-assign]
    try:
        yield noted
    finally:
        DomainPool.add = add  # type: ignore[method-assign]


def seeded(build: Callable[[], nn.Module], *shape: int) -> Callable[[WeightSource], Graph]:
    """A network of a module with seeded weights that reads one `shape`."""

    def make(weights: WeightSource) -> Graph:
        torch.manual_seed(3)
        module = build().eval().requires_grad_(False)
        return build_graph(build_bounded_module(module, torch.zeros(1, *shape)), weights)

    return make


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between each two."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def _up_and_down() -> nn.Sequential:
    """Transposed convolutions, strided and grouped; input (3, 5, 5)."""
    return nn.Sequential(
        nn.ConvTranspose2d(3, 5, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(5, 4, 2, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 4 * 4, 7),
    )


def _onnx(path: Path, radius: float, outputs: int = 10, **options: Any) -> BoundCase:
    def make(weights: WeightSource) -> Graph:
        return load_network(path, weights, check=False).graph

    return BoundCase(make, radius, outputs, file=path, **options)


_MNIST = BENCHMARKS / "vnncomp2022/mnist_fc"
_RESNET = BENCHMARKS / "vnncomp2021/cifar10_resnet"

CASES: Mapping[str, BoundCase | BranchCase] = {
    "MLP 7-33-101-65-5": BoundCase(seeded(lambda: mlp(7, 33, 101, 65, 5), 7), 0.5, 5),
    "MLP 13-1-257-3": BoundCase(seeded(lambda: mlp(13, 1, 257, 3), 13), 0.5, 3),
    "MLP 5-1021-1021-11": BoundCase(seeded(lambda: mlp(5, 1021, 1021, 11), 5), 0.1, 11),
    "sigmoid 9-31-17-5": BoundCase(
        seeded(lambda: mlp(9, 31, 17, 5, activation=nn.Sigmoid), 9), 0.5, 5
    ),
    "transposed convolutions": BoundCase(seeded(_up_and_down, 3, 5, 5), 0.2, 7),
    "digits conv": _onnx(ROOT / "exp_configs/digits/onnx/conv.onnx", 0.03),
    "digits residual": _onnx(ROOT / "exp_configs/digits/onnx/resnet.onnx", 0.02),
    **{
        f"mnist_fc 256x{depth}": _onnx(_MNIST / f"onnx/mnist-net_256x{depth}.onnx", radius)
        for depth, radius in ((2, 0.03), (4, 0.01), (6, 0.004))
    },
    "cifar10 resnet_2b": _onnx(_RESNET / "onnx/resnet_2b.onnx", 0.002, 2),
    "cifar10 resnet_4b": _onnx(_RESNET / "onnx/resnet_4b.onnx", 0.0005, 1),
    "cifar_base_kw": _onnx(BENCHMARKS / "vnncomp2022/oval21/onnx/cifar_base_kw.onnx", 0.005, 3),
    "vit pgd_2_3_16": _onnx(
        BENCHMARKS / "vnncomp2023/vit/onnx/pgd_2_3_16.onnx", 0.001, 2, methods=("crown",)
    ),
    "branching mnist_fc 256x4": BranchCase(
        _MNIST / "onnx/mnist-net_256x4.onnx", _MNIST / "vnnlib/prop_1_0.05.vnnlib"
    ),
    "branching resnet_2b": BranchCase(
        _RESNET / "onnx/resnet_2b.onnx",
        _RESNET / "vnnlib_properties_pgd_filtered/resnet2b_pgd_filtered/prop_0_eps_0.008.vnnlib",
        rounds=3,
        batch=16,
        iterations=3,
        root_iterations=5,
    ),
}


def available(name: str) -> bool:
    """Whether the files of a case are on this machine."""
    file = CASES[name].file
    return file is None or file.exists() or file.with_name(f"{file.name}.gz").exists()


def compute(ranks: Ranks, name: str, prefetch: bool = True, wrap: Wrap | None = None) -> Found:
    """Run a case on this rank: whole weights with one rank, slices with several.

    Args:
        wrap: puts something around the weights, for tests.
    """
    weights: WeightSource = OneRankWeights()
    if ranks.world.size > 1:
        weights = ShardedWeights(ranks.data, prefetch=prefetch)
    return CASES[name].run(weights if wrap is None else wrap(weights))
