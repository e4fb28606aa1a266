"""CROWN and α-CROWN with rows divided over 2, 3 and 4 ranks against one rank.

In tiles nothing may depend on the number of ranks, not a bit: bounds of all nodes, α, and so the
whole optimisation. Otherwise sums are rounded differently: CROWN within 1e-6, α-CROWN within 1e-5
of what is larger than one, after 20 steps. A failure means that ranks prove something about other
relaxations than they optimise, or that a verdict depends on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import backward, row_block, schedule
from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.errors import RanksDisagreeError
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks, differentiable
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.row_share import RowShare, RowSplit
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from tests.distributed.ranks import RankPool
from tests.unit.engine import nets

pytestmark = pytest.mark.distributed

TILE = 16
RADII = (0.1, 0.5357, 0.6161, 0.7085, 1.425, 1.8846, 2.4924, 3.7906, 7.6)
IN_TILES = BoundOptions(tile_rows=TILE)
IN_CHUNKS = BoundOptions(chunk_rows=40)
DENSE = replace(IN_CHUNKS, sparse_rows=False, sparse_alpha=False)


@dataclass(frozen=True)
class Case:
    """One network and how it is bounded.

    Attributes:
        name: of `nets`, "wide" or "wide conv".
        radius: of the boxes.
        options: how bounds are computed.
        alpha: how α is optimised.
        fsdp: weights are sharded too.
        rows: so many functionals at most.
        plant: name of a bug of `BUGS`.
    """

    name: str
    radius: float = 0.4
    options: BoundOptions = IN_TILES
    alpha: AlphaOptions = AlphaOptions(iterations=3, final_first=2)
    fsdp: bool = False
    rows: int = 1000
    plant: str = ""

    def __str__(self) -> str:
        where = " fsdp" if self.fsdp else ""
        return f"{self.name}{where} {self.rows} rows"


def _module(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(5)
    if name == "wide":  # products whose bits depend on their number of rows
        return nets.mlp(20, 96, 64, 64, 6), (20,)
    if name == "wide conv":
        parts = [nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)]
        return nn.Sequential(*parts, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5)), (2, 8, 8)
    return nets.make(name, seed=5)


def _graph(ranks: Ranks, case: Case) -> Graph:
    weights = ShardedWeights(ranks.data, prefetch=True) if case.fsdp else OneRankWeights()
    return nets.graph_of(*_module(case.name), torch.float32, weights)


# -- planted bugs: what a rank does instead --------------------------------------------------


def _adjoint_not_summed(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    start = sum(ctx.sizes[: ctx.communicator.rank])
    return grads[0][start : start + ctx.sizes[ctx.communicator.rank]], None, None


def _tiles_not_summed(communicator: Communicator, table: Tensor, tiles: object) -> Tensor:
    return table.sum(0)


def _tiles_summed_by_rank(communicator: Communicator, table: Tensor, tiles: object) -> Tensor:
    return communicator.all_reduce_sum(table.sum(0))


_SUM = differentiable._sum_in_order
_GATHER = RowSplit.gather


def _tiles_summed_twice(communicator: Communicator, table: Tensor, tiles: Any) -> Tensor:
    return _SUM(communicator, table, tiles) * 2


def _rows_swapped(split: RowSplit, own: Tensor, what: str) -> Tensor:
    return _GATHER(split, own, what).roll(1, 0)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "adjoint not summed": (
        differentiable._GatherRows,
        "backward",
        staticmethod(_adjoint_not_summed),
    ),
    "tiles not summed": (differentiable, "_sum_in_order", _tiles_not_summed),
    "tiles summed by rank": (differentiable, "_sum_in_order", _tiles_summed_by_rank),
    "tiles summed twice": (differentiable, "_sum_in_order", _tiles_summed_twice),
    "rows swapped": (RowSplit, "gather", _rows_swapped),
}


# -- run by every rank -----------------------------------------------------------------------


def all_bounds(ranks: Ranks, case: Case) -> dict[str, Tensor]:
    """Every bound and α that is left at the end, and CROWN's before."""
    if not case.plant:
        return _bounds(ranks, case)
    owner, name, bug = BUGS[case.plant]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, bug)
        return _bounds(ranks, case)


def _bounds(ranks: Ranks, case: Case) -> dict[str, Tensor]:
    graph = _graph(ranks, case)
    torch.manual_seed(6)
    box = nets.boxes(graph.input_shape, 1, case.radius, torch.float32)
    matrix = nets.signed_outputs(graph)[: case.rows]
    options = replace(case.options, row_share=RowShare(ranks.data))
    state, lower = nets.crown(graph, box, matrix, options)
    found = {"crown": lower, **_inner("crown", state.bounds, graph)}
    rows = nets.spec_rows(graph, matrix)
    result = optimize_alpha(state, rows, nets.everything_open, options, case.alpha)
    assert result.iterations == case.alpha.iterations + case.alpha.final_first
    found |= {"alpha": result.lower, **_inner("alpha", result.bounds, graph)}
    found |= {f"slopes {index}": alpha for index, alpha in result.alphas.items()}
    for node, (_, alphas) in result.inner.items():
        found |= {f"slopes {node} {index}": alpha for index, alpha in alphas.items()}
    return found


def _inner(method: str, bounds: Any, graph: Graph) -> dict[str, Tensor]:
    own: dict[str, Interval] = {f"{method} {node}": bounds[node] for node in graph.bounded}
    return {key: torch.stack([value.lower, value.upper]) for key, value in own.items()}


def bounds_over_radii(ranks: Ranks, sparse: bool) -> list[tuple[int, Tensor]]:
    """α-CROWN where no neuron of the second layer is unstable, one, and so on: count and bounds."""
    torch.manual_seed(5)
    graph = nets.graph_of(nets.mlp(4, 6, 5, 3), (4,), torch.float32)
    share = RowShare(ranks.data)
    options = BoundOptions(row_share=share, sparse_rows=sparse, sparse_alpha=sparse)
    second = graph.bounded[1]
    found = []
    for radius in RADII:
        torch.manual_seed(6)
        box = nets.boxes(graph.input_shape, 1, radius, torch.float32)
        matrix = nets.signed_outputs(graph)
        state, _ = nets.crown(graph, box, matrix, options)
        bounds = state.bounds[second]
        unstable = int(((bounds.lower < 0) & (bounds.upper > 0)).sum())
        result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2), options)
        found.append((unstable, result.lower))
    return found


def gather_other_rows(ranks: Ranks) -> str:
    """Rank 1 is at another node than the others, with as many rows."""
    split = RowShare(ranks.data).split(6)
    try:
        split.gather(torch.ones(split.stop - split.start), f"node {int(ranks.data.rank == 1)}")
    except RanksDisagreeError as error:
        return str(error)
    return ""


def run_out_of_memory(ranks: Ranks, fails_at: int) -> tuple[int, list[str], Tensor]:
    """The k-th backward pass, or below 0 the k-th gradient pass, of rank 1 finds no memory."""
    told: list[str] = []
    case = Case("deep", radius=0.8, alpha=AlphaOptions(iterations=4))
    options = BoundOptions(row_share=RowShare(ranks.data), told=told.append)
    graph = _graph(ranks, case)
    torch.manual_seed(6)
    box = nets.boxes(graph.input_shape, 1, case.radius, torch.float32)
    calls = {"pass": 0, "gradient": 0}

    def failing(kind: str, at: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[kind] += 1
            if ranks.world.rank == 1 and calls[kind] == at:
                raise torch.OutOfMemoryError("planted: not enough memory")
            return original(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module in (schedule, row_block):
            passes = failing("pass", fails_at, backward.lower_bounds)
            patch.setattr(module, "lower_bounds", passes)
        # In the middle of the gradient pass: the others wait in an exchange of it.
        step = differentiable._GatherRows.backward
        patch.setattr(
            differentiable._GatherRows,
            "backward",
            staticmethod(failing("gradient", -fails_at, step)),
        )
        found = nets.alpha_crown(graph, box, nets.signed_outputs(graph), case.alpha, options)
    return found.iterations, told, found.lower


def multiplier_bytes(ranks: Ranks) -> int:
    """Peak bytes of α with all that belongs to it."""
    case = Case("wide", options=BoundOptions())
    graph = _graph(ranks, case)
    box = nets.boxes(graph.input_shape, 1, case.radius, torch.float32)
    options = replace(case.options, row_share=RowShare(ranks.data))
    with MemoryMeter() as meter:
        nets.alpha_crown(graph, box, nets.signed_outputs(graph), case.alpha, options)
    return meter.peak_by_kind[MemoryKind.MULTIPLIERS]


# -- tests -----------------------------------------------------------------------------------


def _compare(
    pool: RankPool,
    case: Case,
    same: Callable[[str, Tensor, Tensor], bool],
    worlds: tuple[int, ...],
) -> list[str]:
    """What differs on some rank of some world from one rank's."""
    (alone,) = pool.run(all_bounds, 1, replace(case, plant=""))
    if not bool((alone["alpha"] > alone["crown"]).any()):
        raise ValueError("α-CROWN improved nothing")
    found = []
    for world_size in worlds:
        others = pool.run(all_bounds, world_size, case, timeout=120, collective_timeout=60)
        for rank, other in enumerate(others):
            assert other.keys() == alone.keys()
            found += [
                f"{key} on rank {rank} of {world_size}"
                for key in alone
                if not same(key, other[key], alone[key])
            ]
    return found


def _bits(_: str, one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other)


def _near(key: str, one: Tensor, other: Tensor) -> bool:
    """Near, as far as the functionals depend on it.

    Where the gradient is nearly zero rounding decides where Adam goes: slopes may be anywhere, and
    bounds of neurons that hardly matter differ as much between two sizes of chunks on one rank.
    """
    if key.startswith("slopes"):
        return one.shape == other.shape
    limit = {"crown": 1e-6, "alpha": 1e-5}.get(key, 1e-6 if key.startswith("crown") else 3e-4)
    return bool(((one - other).abs() / other.abs().clamp(min=1)).max() <= limit)


KEEP = replace(Case.alpha, keep_inner=True)
TWENTY = AlphaOptions(iterations=20)


@pytest.mark.parametrize(
    ("case", "worlds"),
    [
        (Case("wide", alpha=KEEP), (2, 3, 4)),
        (Case("wide conv", radius=0.2), (2,)),
        (Case("wide", fsdp=True), (3,)),
        (Case("residual", fsdp=True, alpha=KEEP), (2,)),
        (Case("product"), (2,)),
        (Case("sigmoid", radius=0.8), (3,)),
        # One functional and layers of one tile: most ranks have no rows at all.
        (Case("deep", fsdp=True, rows=1), (2, 4)),
        (Case("wide", fsdp=True, rows=1, options=replace(IN_TILES, memory_bytes=1)), (2,)),
    ],
    ids=str,
)
def test_in_tiles_every_world_has_the_bits_of_one_rank(
    rank_pool: RankPool, case: Case, worlds: tuple[int, ...]
) -> None:
    assert not _compare(rank_pool, case, _bits, worlds)


@pytest.mark.parametrize(
    ("case", "worlds"),
    [
        (Case("wide", options=IN_CHUNKS, alpha=TWENTY), (2, 3, 4)),
        (Case("wide", options=DENSE, alpha=TWENTY), (2,)),
        (Case("wide conv", radius=0.2, options=BoundOptions(memory_bytes=60_000)), (3,)),
        (Case("mixed", options=BoundOptions(), alpha=TWENTY), (2,)),
        (Case("deep", options=IN_CHUNKS, rows=1, fsdp=True), (2, 4)),
    ],
    ids=str,
)
def test_otherwise_bounds_differ_by_rounding_alone(
    rank_pool: RankPool, case: Case, worlds: tuple[int, ...]
) -> None:
    assert not _compare(rank_pool, case, _near, worlds)


@pytest.mark.parametrize("sparse", [True, False])
def test_any_number_of_unstable_neurons_is_shared(rank_pool: RankPool, sparse: bool) -> None:
    """Field case 28: none, one, ... all; with four ranks some have no row at all."""
    (alone,) = rank_pool.run(bounds_over_radii, 1, True)
    assert {count for count, _ in alone} == set(range(6))
    for other in rank_pool.run(bounds_over_radii, 4, sparse, timeout=120):
        for (count, lower), (reference, expected) in zip(other, alone, strict=True):
            assert count == reference
            torch.testing.assert_close(lower, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_bug_is_seen(rank_pool: RankPool, bug: str) -> None:
    in_tiles = bug.startswith("tiles")
    case = Case("wide", options=IN_TILES if in_tiles else IN_CHUNKS, plant=bug)
    assert _compare(rank_pool, case, _bits if in_tiles else _near, worlds=(2,))


def test_ranks_at_different_nodes_do_not_mix_their_bounds(rank_pool: RankPool) -> None:
    for told in rank_pool.run(gather_other_rows, 3, timeout=120):
        assert "rank 0 at data.node 0, rows (2, 2, 2)" in told and "rank 1 at data.node 1" in told


@pytest.mark.parametrize("fails_at", [2, 9, 13, -1, -4])
def test_memory_that_runs_out_on_one_rank_changes_no_bound(
    rank_pool: RankPool, fails_at: int
) -> None:
    ((_, _, alone),) = rank_pool.run(run_out_of_memory, 1, 0)
    found = rank_pool.run(run_out_of_memory, 3, fails_at, timeout=120, collective_timeout=60)
    assert found[1][1], "rank 1 did not run out of memory"
    for iterations, _, lower in found:
        assert iterations == 4
        torch.testing.assert_close(lower, alone, rtol=1e-5, atol=1e-5)


def test_slopes_live_on_one_rank_each(rank_pool: RankPool) -> None:
    (alone,) = rank_pool.run(multiplier_bytes, 1, timeout=120)
    for world_size in (2, 4):
        for held in rank_pool.run(multiplier_bytes, world_size):
            assert held <= 1.15 * alone / world_size
