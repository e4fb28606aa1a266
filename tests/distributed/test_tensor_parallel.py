"""Bounds of networks split by neuron over 2, 3 and 4 ranks against one rank.

Sums over neurons are made in another order, so bounds agree up to float rounding: 1e-5 relative for
CROWN, 1e-3 after 20 α steps, which amplify it. Ranks of a group agree bit for bit. A failure means
that ranks bound a network that is not the one given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.engine import zones
from auto_LiRPA_patches.engine.alpha import optimize_alpha
from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.neurons import Neurons
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.engine.rows import SpecRows
from auto_LiRPA_patches.engine.schedule import (
    crown_bounds,
    crown_interval,
    crown_relaxations,
    interval_rows,
)
from auto_LiRPA_patches.engine.tensor_parallel import split_neurons
from auto_LiRPA_patches.errors import SoundnessError
from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.linear_tp import AllNeurons, BoundLinearTPRow, OwnNeurons
from auto_LiRPA_patches.sharding import matrix_blocks
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from auto_LiRPA_patches.sharding.weights import WeightSource
from tests.distributed.ranks import RankPool
from tests.unit.engine import nets

pytestmark = pytest.mark.distributed


def _deep() -> Graph:
    torch.manual_seed(3)
    net = nets.mlp(12, *(20,) * 9, 3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    return nets.graph_of(net, (12,), torch.float32)


def _net(name: str) -> Callable[[], Graph]:
    return lambda: nets.graph_of(*nets.make(name, 5), torch.float32)


class Lone(nn.Module):
    """A layer whose neurons are wanted whole, and one at the end that stands alone; input (5,)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(5, 9), nn.Linear(9, 9), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.last(torch.relu(self.gate(h) * h))


def _lone() -> Graph:
    torch.manual_seed(4)
    return nets.graph_of(Lone().eval(), (5,), torch.float32)


class Tied(nn.Module):
    """One matrix in two layers, of which one is not split; input (24,)."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(12, 12, bias=False)
        self.down, self.up, self.last = nn.Linear(24, 8), nn.Linear(8, 12), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.tied(x.reshape(-1, 2, 12))).reshape(-1, 24)
        h = torch.relu(self.up(torch.relu(self.down(h))))
        return self.last(torch.relu(self.tied(h)))


def _tied() -> Graph:
    torch.manual_seed(4)
    return nets.graph_of(Tied().eval(), (24,), torch.float32)


# So that the names of the whole layer's blocks are those that its part's would have.
MOST_AT_ONCE = 36
# name -> graph, radius of the box, ranks
NETWORKS: dict[str, tuple[Callable[[], Graph], float, tuple[int, ...]]] = {
    "lone": (_lone, 0.3, (2,)),
    "mixed": (_net("mixed"), 0.2, (2,)),
    "residual": (_net("residual"), 0.2, (2, 3, 4)),
    "sigmoid": (_net("sigmoid"), 0.3, (3,)),
    "ten layers": (_deep, 0.05, (2, 4)),
    "ten layers in blocks": (_deep, 0.05, (3,)),
    "tied in blocks": (_tied, 0.2, (2,)),
}


def _box(graph: Graph, radius: float, batch: int) -> Interval:
    generator = torch.Generator().manual_seed(7)
    center = torch.rand((batch, *graph.input_shape), generator=generator)
    return Interval(center - radius, center + radius)


def _rows(graph: Graph) -> SpecRows:
    return nets.spec_rows(graph, nets.signed_outputs(graph))


def bounds_of(ranks: Ranks, name: str, refined: bool = True) -> dict[str, Any]:
    """Lower bounds of all outputs and their negatives by method; which nodes are split."""
    make, radius, _ = NETWORKS[name]
    most = MOST_AT_ONCE if name.endswith("in blocks") else matrix_blocks._MOST_AT_ONCE
    with (
        mock.patch.object(zones, "_WORTH_WEIGHTS", 18),  # as if layers were large
        mock.patch.object(matrix_blocks, "_MOST_AT_ONCE", most),
    ):
        graph = split_neurons(make(), ranks.tp, OneRankWeights(), refined=refined)
    box, rows, options = _box(graph, radius, 2), _rows(graph), BoundOptions()
    state = crown_relaxations(graph, box, options)
    found = {
        "ibp": interval_rows(Relaxations(graph, box), rows),
        "crown-ibp": crown_bounds(
            crown_relaxations(graph, box, BoundOptions(intermediate="ibp")), rows, options
        ),
        "crown": crown_bounds(state, rows, options),
        "value": graph.forward(box.center),
    }
    alpha = AlphaOptions(iterations=20, early_stop=False)
    optimized = optimize_alpha(state, rows, nets.everything_open, options, alpha)
    if not bool((optimized.lower >= found["crown"]).all()):
        raise ValueError("α-CROWN is looser than CROWN")
    found["alpha-crown"] = optimized.lower
    point = box.center.requires_grad_()
    graph.forward(point).square().sum().backward()
    found["gradient"] = point.grad if point.grad is not None else torch.zeros(())
    numbers = {method: bound.detach() for method, bound in found.items()}
    kinds = {type(node.operator) for node in graph.nodes}
    border = {AllNeurons, OwnNeurons} & kinds
    return {"numbers": numbers, "split": len(graph.neurons.split), "border": len(border)}


def crown_of(ranks: Ranks, name: str, refined: bool = True) -> Tensor:
    """CROWN's lower bounds ``[S, B]``."""
    make, radius, _ = NETWORKS[name]
    graph = split_neurons(make(), ranks.tp, OneRankWeights(), refined=refined)
    box = _box(graph, radius, 2)
    options = BoundOptions()
    return crown_bounds(crown_relaxations(graph, box, options), _rows(graph), options)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest |a - b| / max(1, |b|)."""
    return float(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max())


@pytest.mark.parametrize("name", list(NETWORKS))
def test_bounds_over_ranks_are_those_of_one(rank_pool: RankPool, name: str) -> None:
    (alone,) = rank_pool.run(bounds_of, 1, name, timeout=200)
    assert alone["split"] == 0
    for size in NETWORKS[name][2]:
        found = rank_pool.run(bounds_of, size, name, tp=size, timeout=300)
        for rank, other in enumerate(found):
            assert other["split"] >= 2 and (name != "lone" or other["border"] == 2)
            for method, expected in alone["numbers"].items():
                where = f"{method}, rank {rank} of {size}"
                assert torch.equal(other["numbers"][method], found[0]["numbers"][method]), where
                limit = 1e-3 if method == "alpha-crown" else 1e-5
                assert difference(other["numbers"][method], expected) <= limit, where


def numbers_sent(ranks: Ranks) -> tuple[int, int]:
    """Numbers all-reduced by a pass from the output, and by one from inside the third zone."""
    graph = split_neurons(_deep(), ranks.tp, OneRankWeights())
    box, options = _box(graph, 0.05, 2), BoundOptions()
    state = crown_relaxations(graph, box, options)
    node = sorted(graph.neurons.split)[4]
    sent = []
    plain = Communicator.all_reduce_sum

    def counted(self: Communicator, tensor: Tensor) -> Tensor:
        sent.append(tensor.numel())
        return plain(self, tensor)

    with mock.patch.object(Communicator, "all_reduce_sum", counted):
        crown_bounds(state, _rows(graph), options)
        from_output, sent = sum(sent), []
        crown_interval(state, node, torch.arange(7), options)
    return from_output, sum(sent)


def test_a_pass_sends_what_the_operators_say(rank_pool: RankPool) -> None:
    inputs, boxes = (12, 20, 20, 20, 20), 2
    for from_output, from_inside in rank_pool.run(numbers_sent, 2, tp=2):
        assert from_output == 6 * boxes * sum(inputs) + 6 * boxes
        assert from_inside == 14 * (inputs[2] + 1) + 14 * boxes * sum(inputs[:2]) + 14 * boxes


def with_bug(ranks: Ranks, name: str, bug: str) -> Tensor | None:
    """`crown_of` with one of the likely mistakes in place; None where the bounds cross."""
    plain = Communicator.all_reduce_sum
    row_offset = BoundLinearTPRow.offset

    def doubled(self: Communicator, tensor: Tensor) -> Tensor:
        return plain(self, tensor).mul_(2)

    def dropped(self: Communicator, tensor: Tensor) -> Tensor:
        return tensor

    def per_rank(self: BoundLinearTPRow, weights: WeightSource) -> Tensor | None:
        offset = row_offset(self, weights)
        return None if offset is None else offset * self.group.size

    def local(self: Neurons, partial: Tensor | None) -> Tensor | None:
        return partial

    planted: dict[str, tuple[type, str, Callable[..., Any]]] = {
        "reduction doubled": (Communicator, "all_reduce_sum", doubled),
        "reduction dropped": (Communicator, "all_reduce_sum", dropped),
        "bias added per rank": (BoundLinearTPRow, "offset", per_rank),
        "partial bias not summed": (Neurons, "total", local),
    }
    with mock.patch.object(*planted[bug]):
        try:
            return crown_of(ranks, name)
        except SoundnessError:
            return None


@pytest.mark.parametrize(
    "bug",
    [
        "reduction doubled",
        "reduction dropped",
        "bias added per rank",
        "partial bias not summed",
    ],
)
def test_a_mistake_in_a_sum_would_be_seen(rank_pool: RankPool, bug: str) -> None:
    (alone,) = rank_pool.run(crown_of, 1, "residual")
    for found in rank_pool.run(with_bug, 2, "residual", bug, tp=2):
        assert found is None or difference(found, alone) > 1e-2


def test_interval_bounds_inside_zones_are_sound_and_no_tighter(rank_pool: RankPool) -> None:
    exact = rank_pool.run(crown_of, 2, "ten layers", tp=2)[0]
    looser = rank_pool.run(crown_of, 2, "ten layers", False, tp=2)
    assert torch.equal(looser[0], looser[1])
    assert bool((looser[0] <= exact + 1e-5 * exact.abs().clamp(min=1)).all())
    assert bool((looser[0] < exact - 0.1).any())
    graph = _deep()
    box = _box(graph, NETWORKS["ten layers"][1], 2)
    outputs = nets.outputs_of(graph, nets.points_of(box, 200))
    sampled = (outputs @ nets.signed_outputs(graph).T).amin(0).T
    assert bool((looser[0] <= sampled + 1e-5).all())
