"""One rank that bounds a network split by neuron, and measures it; started by `tables.ranks.split`.

    PYTHONPATH=. torchrun --standalone --nproc_per_node 2 -- scripts/tables/tp_worker.py \\
        zone:512x65536x1 --out out.json --batch 64

A network is ``zone:INPUTSxWIDTHxOUTPUTS`` (one zone, weights from a seed, made part by part),
``mlp:WIDTHxDEPTH`` (784 inputs, 10 outputs) or an ONNX file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.schedule import crown_bounds, crown_relaxations, interval_rows
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Ranks, start, stop
from auto_LiRPA_patches.sharding.launch import read_launch
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.mesh import Mesh
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.bounds.input_box import input_box
from complete_verifier.model.network import load_network
from complete_verifier.specification import read_vnnlib
from tables.bound_worker import all_steps, both_sides, mlp, survey
from tables.seeded_weights import one_zone


def whole_graph(network: str) -> Graph:
    """The graph of all neurons, for one rank to take its own from."""
    if network.startswith("zone:"):
        return one_zone(network)
    if network.startswith("mlp:"):
        module = build_bounded_module(mlp(network), torch.zeros(1, 784))
        return build_graph(module, OneRankWeights())
    return load_network(network, OneRankWeights(), check=False).graph


def region(graph: Graph, options: argparse.Namespace) -> Interval:
    """The box of a property, or boxes around seeded inputs in [0, 1]."""
    if options.vnnlib is not None:
        return input_box(graph, read_vnnlib(options.vnnlib).regions[0])
    shape = (options.batch, *graph.input_shape)
    middle = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return Interval(middle - options.radius, middle + options.radius)


def bounds(graph: Graph, box: Interval, method: str, options: argparse.Namespace) -> Tensor:
    """Lower bounds of all outputs and of their negatives, ``[S, B]``."""
    rows = both_sides(graph)
    settings = BoundOptions(chunk_rows=options.chunk)
    if method == "ibp":
        return interval_rows(Relaxations(graph, box), rows)
    state = crown_relaxations(graph, box, settings)
    if method == "crown":
        return crown_bounds(state, rows, settings)
    return all_steps(state, rows, settings, options.iterations).lower


def measure(options: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Load and bound by each method; figures of this rank."""
    weights: WeightSource = ShardedWeights(ranks.data) if options.fsdp else OneRankWeights()
    refined = options.tp_intermediate == "exact"
    # Outside the meter: with one open, a trace of convolutions loses the network's input.
    whole = whole_graph(options.network)
    with MemoryMeter() as loading:
        graph = split_neurons(whole, ranks.tp, weights, refined=refined)
    del whole
    graph.weights.check_agreement()
    held = graph.weights.held()
    box = region(graph, options)
    found: dict[str, Any] = {
        "parameters": sum(tensor.nbytes for tensor in held),
        "loading_peak_bytes": loading.peak_bytes,
        "largest_other_bytes": survey(held)[1],
        "split_nodes": len(graph.neurons.split),
        "methods": {},
    }
    for method in options.methods:
        since = time.process_time()
        with MemoryMeter() as meter:
            meter.track(*held, kind=MemoryKind.WEIGHTS)
            meter.track(box.lower, box.upper)
            meter.mark_baseline()
            lower = bounds(graph, box, method, options).detach()
        found["methods"][method] = {
            "baseline_bytes": meter.baseline_bytes,
            "peak_bytes": meter.peak_bytes,
            "peak_by_kind": {kind.value: size for kind, size in meter.peak_by_kind.items()},
            "cpu_seconds": time.process_time() - since,
            "bounds": lower.double().flatten().tolist(),
            "digest": hashlib.sha256(lower.contiguous().numpy().tobytes()).hexdigest(),
        }
    return found


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Bound one network split by neuron.")
    parser.add_argument("network")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["crown"])
    parser.add_argument("--tp", type=int, default=0, help="ranks per group; 0 = all")
    parser.add_argument("--tp_intermediate", choices=("exact", "ibp"), default="exact")
    parser.add_argument("--fsdp", action="store_true", help="cut what tp leaves, over the others")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--vnnlib", type=Path, help="a property that gives the box")
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--iterations", type=int, default=20, help="of α-CROWN")
    parser.add_argument("--chunk", type=int, default=1_000_000_000, help="rows per backward pass")
    parser.add_argument("--device", choices=("cpu",), default="cpu")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure on this rank; rank 0 writes all ranks' figures."""
    options = parse(arguments)
    launch = read_launch()
    ranks = start(Mesh(launch.world_size, options.tp or launch.world_size, launch.rank), "gloo")
    try:
        every = ranks.world.all_gather_object(measure(options, ranks))
    finally:
        stop()
    if launch.rank == 0:
        options.out.write_text(json.dumps(every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
