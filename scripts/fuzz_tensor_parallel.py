"""Bound random networks split by neuron, and compare with the exact minimum and with samples.

    python scripts/fuzz_tensor_parallel.py --count 200 --seed 0

Each network is bounded by IBP, CROWN (exact and interval bounds inside zones) and α-CROWN on two or
three ranks. No bound may lie above the exact minimum of its functional over the box (a mixed
integer program decides it) or above a sampled value, and the ranks of a group have the same bits.
Exit code 1 if one does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from exact_minimum import affine_layers, minimum, outputs
from rank_processes import RankProcesses
from torch import Tensor, nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations, interval_rows
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights

# Relative to max(1, |minimum|): float32 adds up a few dozen numbers.
_ROUNDING = 1e-5
_SAMPLES = 200


@dataclass(frozen=True, eq=False)
class Case:
    """A network, a box, and functionals of its outputs.

    Attributes:
        module: ReLU between affine layers.
        low, high: ``[I]`` corners of the box, float32 numbers.
        rows: ``[S, O]``.
    """

    module: nn.Sequential
    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray


def case(seed: int) -> Case:
    """A network of two to four ReLU layers of unlike widths, and a box of sides up to 2."""
    generator = torch.Generator().manual_seed(seed)

    def integer(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    inputs, sizes = integer(1, 4), [integer(3, 9) for _ in range(integer(2, 4))]
    layers: list[nn.Module] = []
    widths = [inputs, *sizes, 2]
    for below, above in zip(widths, widths[1:], strict=False):
        layer = nn.Linear(below, above, bias=integer(0, 3) > 0)
        with torch.no_grad():
            for parameter in layer.parameters():
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values * 1.5 / below**0.5)
        layers += [layer, nn.ReLU()]
    center = torch.randn(inputs, generator=generator)
    radius = torch.rand(inputs, generator=generator)
    rows = torch.cat([torch.eye(2), -torch.eye(2), torch.tensor([[1.0, -1.0]])])
    low, high = (center - radius).double().numpy(), (center + radius).double().numpy()
    return Case(nn.Sequential(*layers[:-1]).eval(), low, high, rows.double().numpy())


def bounds(graph: Graph, box: Interval, rows: SpecRows) -> dict[str, Tensor]:
    """Lower bounds ``[S, 1]`` by method."""
    options = BoundOptions()
    state = crown_relaxations(graph, box, options)
    alpha = AlphaOptions(iterations=5, early_stop=False)

    def every(lower: Tensor) -> Tensor:
        return torch.ones_like(lower, dtype=torch.bool)

    return {
        "ibp": interval_rows(Relaxations(graph, box), rows),
        "crown": crown_bounds(state, rows, options),
        "alpha-crown": optimize_alpha(state, rows, every, options, alpha).lower.detach(),
    }


def bound_cases(ranks: Ranks, seeds: Sequence[int]) -> list[dict[str, list[float]]]:
    """Bounds of each case on this rank, by method."""
    return [bound_case(ranks, case(seed)) for seed in seeds]


def bound_case(ranks: Ranks, given: Case) -> dict[str, list[float]]:
    """Bounds of one case on this rank, by method; `zone ibp` has intervals inside zones."""
    low, high = torch.from_numpy(given.low).float(), torch.from_numpy(given.high).float()
    box, rows = Interval(low[None], high[None]), SpecRows(torch.from_numpy(given.rows).float())
    found: dict[str, list[float]] = {}
    for refined in (True, False):
        # Upstream changes the module it is given.
        whole = build_graph(build_bounded_module(given.module, low[None]), OneRankWeights())
        graph = split_neurons(whole, ranks.tp, OneRankWeights(), refined=refined)
        if refined:
            by_method = bounds(graph, box, rows)
        else:
            options = BoundOptions()
            state = crown_relaxations(graph, box, options)
            by_method = {"zone ibp": crown_bounds(state, rows, options)}
        found |= {method: lower[:, 0].tolist() for method, lower in by_method.items()}
    return found


def least(given: Case, seed: int) -> np.ndarray:
    """``[S]`` the exact minima, or what samples reach below them by rounding."""
    layers = affine_layers(given.module, (len(given.low),))
    exact = [minimum(layers, row, given.low, given.high) for row in given.rows]
    share = np.random.default_rng(seed).random((_SAMPLES, len(given.low)))
    points = given.low + share * (given.high - given.low)
    sampled = (outputs(given.module, points, (len(given.low),)) @ given.rows.T).min(axis=0)
    return np.minimum(np.array(exact), sampled)


def faults(given: Case, seed: int, ranks: Sequence[dict[str, list[float]]]) -> list[str]:
    """What is wrong with one case's bounds, one sentence each."""
    truth = least(given, seed)
    limit = truth + _ROUNDING * np.maximum(1.0, np.abs(truth))
    wrong = [] if all(rank == ranks[0] for rank in ranks) else [f"seed {seed}: ranks differ"]
    for method, lower in ranks[0].items():
        above = np.array(lower) - limit
        if not (above <= 0).all():  # a NaN is no bound
            wrong.append(f"seed {seed}, {method}: {above.max():.3g} above the minimum")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare as many networks as asked for; exit code 1 if a bound is wrong."""
    parser = argparse.ArgumentParser(description="Compare bounds of split networks with minima.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.count)
    wrong: list[str] = []
    with RankProcesses() as processes:
        for size in (2, 3):
            own = [seed for seed in seeds if seed % 2 == size - 2]
            by_rank = processes.run(bound_cases, size, own, tp=size)
            for number, seed in enumerate(own):
                wrong += faults(case(seed), seed, [found[number] for found in by_rank])
            print(f"{len(own)} networks on {size} ranks, {len(wrong)} faults so far", flush=True)
    print("\n".join(wrong) if wrong else f"{options.count} networks: no bound above the minimum")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
