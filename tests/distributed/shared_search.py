"""Branch and bound of small networks on ranks, and what it came to round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from exact_minimum import affine_layers, minimum
from torch import nn

from auto_LiRPA_patches.compat.bounded_module import build_bounded_module
from auto_LiRPA_patches.engine.build import build_graph
from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.engine.upstream_node import BuildOptions
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.bab import stop
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.outcome import BabOutcome
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.region_group import RegionGroup
from complete_verifier.bounds.incomplete import verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.model.network import Network
from complete_verifier.specification import Region
from tests.distributed.ranks import RankPool
from tests.unit.bounds.region_cases import at_most, mlp, region

WORLDS = (2, 3, 4)
BETA = BetaOptions(iterations=4, alpha_rate=0.1, beta_rate=0.1)
SETTINGS = BabSettings(batch_size=16, beta=BETA, reduceop="max", max_iterations=60)
SYNCHRONOUS = replace(SETTINGS, synchronous=True, max_iterations=5)


# How ranks hold weights: whole; in slices, every gather a collective or read from memory in step;
# or in slices that each reads in its own order.
WHOLE, PACKETS, IN_STEP, APART = "whole", "packets", "in step", "apart"
KINDS = {2: APART, 3: IN_STEP, 4: WHOLE}
KINDS_FOR_BOXES = {2: APART, 3: PACKETS, 4: WHOLE}  # with packets, whole while boxes are split
_NOBODY = Communicator.single()


def network_on(
    ranks: Ranks, module: nn.Module, num_inputs: int, *, fsdp: bool, shared_memory: bool = True
) -> Network:
    """The network that a module is, its weights whole or in slices."""
    weights: WeightSource = OneRankWeights()
    if fsdp:
        weights = ShardedWeights(ranks.data, shared_memory=shared_memory)
    bounded = build_bounded_module(module, torch.zeros(1, num_inputs))
    graph = build_graph(bounded, weights, BuildOptions())
    return Network(graph, (num_inputs,), num_inputs, graph.output_shape[0], None, (1, num_inputs))


def alone_on(*arguments: Any) -> tuple[BabOutcome, list[tuple[Any, ...]], int]:
    """What one rank comes to, with one thread as ranks have: bits may depend on the number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return search(Ranks.alone(), *arguments)
    finally:
        torch.set_num_threads(threads)


def on_ranks(rank_pool: RankPool, function: Any, size: int, *arguments: Any) -> list[Any]:
    """Each rank's result; with time enough for a machine that does other work as well."""
    return rank_pool.run(function, size, *arguments, timeout=400, collective_timeout=120)


def seeded(*sizes: int, seed: int = 0, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(seed)
    module = mlp(*sizes).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    return module


def wide() -> tuple[nn.Module, Region]:
    """Wide enough that a product's bits depend on its number of rows; two clauses."""
    clauses = at_most([1.0, -1.0], 0.0), at_most([-1.0, 1.0], 0.02)
    return seeded(200, 96, 96, 2), region([-0.05] * 200, [0.05] * 200, *clauses)


def beside_the_minimum(gap: float, seed: int = 0) -> tuple[nn.Module, Region]:
    """A clause that the exact minimum misses by `gap`, or meets where that is negative."""
    module = seeded(3, 10, 8, 2, seed=seed, scale=1.5)
    low, high = -np.ones(3), np.ones(3)
    truth = minimum(affine_layers(module, (3,)), np.array([1.0, -1.0]), low, high)
    return module.float(), region([-1] * 3, [1] * 3, at_most([1.0, -1.0], truth - gap))


def search(
    ranks: Ranks,
    module: nn.Module,
    where: Region,
    settings: BabSettings,
    weights: str,
    inputs: InputSplitSettings | None = None,
    more: Sequence[Region] = (),
) -> tuple[BabOutcome, list[tuple[Any, ...]], int]:
    """The outcome, what all ranks had come to after each round, and this rank's largest pool.

    Args:
        more: regions whose inputs are split together with those of `where`.
    """
    fsdp = weights != WHOLE
    network = network_on(
        ranks, module, where.lower.size, fsdp=fsdp, shared_memory=weights != PACKETS
    )

    def confirm(asked: Region, point: np.ndarray) -> Counterexample | None:
        if settings.synchronous:
            return None  # the search is to go on
        outputs = np.zeros(2, dtype=np.float32)
        with torch.no_grad():
            if not fsdp:
                outputs = network.forward(torch.from_numpy(point).unsqueeze(0))[0].numpy()
        holds = fsdp or asked.violated_by(outputs)
        return Counterexample(point, outputs) if holds else None

    context = BabContext(
        network=network,
        region=where,
        bounds=BoundOptions(),
        confirm=confirm,
        partners=Partners(
            ranks.data,
            ranks.data if weights in (PACKETS, IN_STEP) and inputs is None else _NOBODY,
        ),
    )
    rounds: list[tuple[Any, ...]] = []
    largest = 0
    together = stop.together

    def noting(partners: Partners, own: stop.Tally, failure: Exception | None) -> stop.Tally:
        nonlocal largest
        total = together(partners, own, failure)
        largest = max(largest, own.waiting)
        rounds.append((total.rounds, total.visited, total.waiting, total.worst_margin))
        return total

    stop.together = noting  # type: ignore[assignment]
    try:
        if inputs is not None:
            with context.partners.apart(network.graph.weights):
                group = RegionGroup.of([where, *more])
                return input_branch_and_bound(context, inputs, settings, group), rounds, largest
        root = verify_region(network, where, BoundSettings(method="crown")).root
        assert root is not None
        return activation_branch_and_bound(root, context, settings), rounds, largest
    finally:
        stop.together = together


def boxes() -> tuple[nn.Module, Region]:
    """Twelve rounds of 64 boxes leave some open."""
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], -1.35))
    return seeded(4, 24, 24, 2, seed=3, scale=2.0), where


def more_boxes(gap: float = 0.08) -> list[Region]:
    """Regions beside that of `boxes`, which are safe for a gap > 0 and not for one < -0.05.

    The least margins that were found from 200 000 points are 0.025 less than the gap, or 0.05.
    """
    first = region([1] * 4, [3] * 4, at_most([-1.0, 1.0], -0.37 - gap))
    either = at_most([1.0, -1.0], -2.626 - gap), at_most([-1.0, 1.0], -0.561 - gap)
    return [first, region([-3] * 4, [-1] * 4, *either)]


BOXES = BabSettings(batch_size=128, max_iterations=12, synchronous=True)
