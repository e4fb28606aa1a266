"""One rank that bounds one network and measures it; started by `tables.ranks.bound`.

    PYTHONPATH=. python scripts/tables/bound_worker.py mlp:4096x4 --out out.json --library stock
    (two ranks: the same under torchrun, with --fsdp)

A network is ``mlp:WIDTHxDEPTH`` (784 inputs, 10 outputs, PyTorch's own initial weights from a seed)
or an ONNX file. The stock library is measured by the same meter as ours.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.alpha import AlphaResult, optimize_alpha
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations, interval_rows
from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Ranks, start, stop
from auto_LiRPA_patches.sharding.launch import read_launch
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.mesh import Mesh
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.row_share import RowShare
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.model.network import load_network

INPUTS, OUTPUTS = 784, 10


def mlp(name: str) -> nn.Sequential:
    """The network ``mlp:WIDTHxDEPTH``; its weights follow from seed 0."""
    width, depth = (int(part) for part in name.removeprefix("mlp:").split("x"))
    torch.manual_seed(0)
    sizes = [INPUTS, *[width] * depth]
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, OUTPUTS)).requires_grad_(False)


def build(options: argparse.Namespace, ranks: Ranks, device: torch.device) -> Graph:
    """Our graph of the network; on several ranks each holds 1/P of it at the end."""
    weights: WeightSource = OneRankWeights()
    if options.fsdp:
        weights = ShardedWeights(ranks.data, prefetch=options.prefetch)
    settings = BuildOptions(device=device)
    if options.network.startswith("mlp:"):
        module = build_bounded_module(mlp(options.network), torch.zeros(1, INPUTS))
        graph = build_graph(module, weights, settings)
    else:
        graph = load_network(options.network, weights, build=settings, check=False).graph
    weights.check_agreement()
    return graph


def boxes(shape: tuple[int, ...], radius: float, device: torch.device) -> Interval:
    """The box around a seeded input in [0, 1]."""
    generator = torch.Generator().manual_seed(1)
    middle = torch.rand(1, *shape, generator=generator).to(device)
    return Interval(middle - radius, middle + radius)


def all_steps(
    state: Relaxations, rows: SpecRows, settings: BoundOptions, iterations: int
) -> AlphaResult:
    """α-CROWN with so many steps, whatever they gain."""
    return optimize_alpha(
        state,
        rows,
        lambda lower: torch.ones_like(lower, dtype=torch.bool),
        settings,
        AlphaOptions(iterations=iterations, early_stop=False),
    )


def both_sides(graph: Graph) -> SpecRows:
    """Every output from below, then every output from above (negated)."""
    count = graph.output_shape[0]
    unit = torch.eye(count, dtype=graph.precision, device=graph.device)
    return SpecRows(torch.cat([unit, -unit]))


def bounds(graph: Graph, box: Interval, method: str, options: argparse.Namespace) -> list[Tensor]:
    """All bounds that `method` gives: the output's rows first, then every inner bound."""
    rows = both_sides(graph)
    settings = BoundOptions(
        chunk_rows=options.chunk, tile_rows=options.tile, row_share=options.row_share
    )
    if method == "ibp":
        state = Relaxations(graph, box)
        result, inner = interval_rows(state, rows), state.bounds
    else:
        state = crown_relaxations(graph, box, settings)
        result, inner = crown_bounds(state, rows, settings), state.bounds
    if method == "alpha-crown":
        found = all_steps(state, rows, settings, options.iterations)
        result, inner = found.lower, found.bounds
    return [result, *(side for key in sorted(inner) for side in _sides(inner[key]))]


def _sides(interval: Interval) -> tuple[Tensor, Tensor]:
    return interval.lower, interval.upper


def measure_ours(options: argparse.Namespace, ranks: Ranks, device: torch.device) -> dict[str, Any]:
    """Bound by each method; figures of this rank."""
    options.row_share = RowShare(ranks.data) if options.shard_specs else RowShare.alone()
    graph = build(options, ranks, device)
    box = boxes(graph.input_shape, options.radius, device)
    held = graph.weights.held()
    alive, largest_other = survey(held)
    found: dict[str, Any] = {
        "parameters": sum(tensor.nbytes for tensor in held),
        "full_parameters": graph.weights.full_bytes,
        "shares_are_ceilings": all(
            share.local_numel == -(-share.full_numel // (ranks.data.size if options.fsdp else 1))
            for share in graph.weights.share()
        ),
        "alive_bytes": sum(alive.values()),
        "largest_other_bytes": largest_other,
        "methods": {},
    }
    for method in options.methods:
        since = time.process_time()
        with MemoryMeter(device) as meter:
            meter.track(*held, kind=MemoryKind.WEIGHTS)
            meter.track(box.lower, box.upper)
            meter.mark_baseline()
            result = bounds(graph, box, method, options)
            found["methods"][method] = figures(meter, result, time.process_time() - since)
        graph.weights.settle()
        del result
    return found


def measure_stock(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Bound by the library alone, CROWN with all rows at once; figures of this process."""
    from auto_LiRPA_patches import registry

    registry.apply()
    from auto_LiRPA import BoundedModule, BoundedTensor
    from auto_LiRPA.perturbations import PerturbationLpNorm

    if not options.network.startswith("mlp:"):
        raise SystemExit("bound_worker: the stock library is measured on mlp:WIDTHxDEPTH only")
    box = boxes((INPUTS,), options.radius, device)
    middle = ((box.lower + box.upper) / 2).detach()
    module = BoundedModule(mlp(options.network).to(device), middle, device=str(device))
    given = BoundedTensor(middle, PerturbationLpNorm(norm=float("inf"), eps=options.radius))
    held = tuple(module.parameters())
    alive, largest_other = survey(held)
    since = time.process_time()
    with MemoryMeter(device) as meter, torch.no_grad():
        meter.track(*tensors())
        meter.track(*held, kind=MemoryKind.WEIGHTS)
        meter.mark_baseline()
        lower, upper = module.compute_bounds(x=(given,), method="CROWN")
        result = [torch.cat([lower[0], -upper[0]]).unsqueeze(1)]
        method = figures(meter, result, time.process_time() - since)
    return {
        "parameters": sum(tensor.nbytes for tensor in held),
        "full_parameters": sum(tensor.nbytes for tensor in held),
        "alive_bytes": sum(alive.values()),
        "largest_other_bytes": largest_other,
        "methods": {"crown": method},
    }


def figures(meter: MemoryMeter, result: Iterable[Tensor], seconds: float) -> dict[str, Any]:
    """What one method cost and gave; every bound enters the digest, the output's are listed."""
    digest = hashlib.sha256()
    listed: list[float] = []
    for number, tensor in enumerate(result):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        if number == 0:
            listed = tensor.detach().double().cpu().flatten().tolist()
    return {
        "baseline_bytes": meter.baseline_bytes,
        "peak_bytes": meter.peak_bytes,
        "peak_by_kind": _named(meter.peak_by_kind),
        "cpu_seconds": seconds,
        "digest": digest.hexdigest(),
        "bounds": listed,
    }


def _named(by_kind: Mapping[MemoryKind, int]) -> dict[str, int]:
    return {kind.value: size for kind, size in by_kind.items()}


def tensors() -> list[Tensor]:
    """Every tensor that Python can reach."""
    gc.collect()
    return [item for item in gc.get_objects() if issubclass(type(item), Tensor)]


def survey(held: Iterable[Tensor]) -> tuple[dict[int, int], int]:
    """Bytes of all storages alive by address, and of the largest that is none of `held`'s."""
    own = {tensor.untyped_storage().data_ptr() for tensor in held}
    alive = {}
    for tensor in tensors():
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            alive[storage.data_ptr()] = storage.nbytes()
    others = [size for address, size in alive.items() if address not in own]
    return alive, max(others, default=0)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Bound one network and measure it.")
    parser.add_argument("network")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--library", choices=("ours", "stock"), default="ours")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["crown"])
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--iterations", type=int, default=20, help="of α-CROWN")
    parser.add_argument("--chunk", type=int, default=1_000_000_000, help="rows per backward pass")
    parser.add_argument("--tile", type=int, help="bound rows in tiles of so many")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--shard_specs", action="store_true", help="divide rows over the ranks")
    parser.add_argument("--no_prefetch", dest="prefetch", action="store_false")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure on this rank; rank 0 writes all ranks' figures."""
    options = parse(arguments)
    launch = read_launch()
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", launch.local_rank)
        torch.cuda.set_device(device)
    ranks = start(Mesh(launch.world_size, 1, launch.rank))
    try:
        stock = options.library == "stock"
        mine = measure_stock(options, device) if stock else measure_ours(options, ranks, device)
        every = ranks.world.all_gather_object(mine)
    finally:
        stop()
    if launch.rank == 0:
        options.out.write_text(json.dumps({"ranks": every}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
