"""Leaving stable neurons out changes no bound, from the first unstable neuron to the last.

A failure means that an index among the unstable neurons is taken for one among all, or that a
neuron's bound depends on how many others are unstable.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.relaxations import Relaxations
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets

SETTINGS = [
    BoundOptions(sparse_rows=rows, sparse_alpha=alpha)
    for rows, alpha in itertools.product((True, False), repeat=2)
]


def unstable(graph: Graph, state: Relaxations) -> list[int]:
    """Number of unstable neurons per activation layer, over all boxes."""
    counts = []
    for index in graph.relaxed:
        bounds = state.bounds[graph.nodes[index].inputs[0]].flatten()
        counts.append(int(((bounds.lower < 0) & (bounds.upper > 0)).any(0).sum()))
    return counts


def sweep(batch: int) -> tuple[Graph, list[Interval], Tensor]:
    torch.manual_seed(70)
    graph = nets.graph_of(nets.mlp(3, 6, 6, 2), (3,))
    center = torch.randn(batch, 3).double()
    radii = [0.0, 1e-3, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 10.0]
    return graph, [Interval(center - r, center + r) for r in radii], nets.signed_outputs(graph)


def test_the_sweep_goes_from_no_unstable_neuron_to_all() -> None:
    graph, boxes, matrix = sweep(batch=1)
    counts = [unstable(graph, nets.crown(graph, box, matrix)[0]) for box in boxes]
    first_layer = [layer[0] for layer in counts]
    assert counts[0] == [0, 0]
    assert counts[-1] == [6, 6]
    assert len(set(first_layer)) > 3


def test_sparsity_changes_no_bound_however_many_neurons_are_unstable() -> None:
    graph, boxes, matrix = sweep(batch=2)
    for box in boxes:
        reference_state, reference = nets.crown(graph, box, matrix, SETTINGS[-1])
        best = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2), SETTINGS[-1])
        for options in SETTINGS[:-1]:
            state, lower = nets.crown(graph, box, matrix, options)
            torch.testing.assert_close(lower, reference, rtol=1e-9, atol=1e-9)
            assert unstable(graph, state) == unstable(graph, reference_state)
            result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=2), options)
            torch.testing.assert_close(result.lower, best.lower, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["deep", "conv", "residual", "mixed"])
@pytest.mark.parametrize("seed", [71, 72])
def test_sparse_alpha_changes_no_bound_of_other_nets(name: str, seed: int) -> None:
    module, shape = nets.make(name, seed)
    graph = nets.graph_of(module, shape)
    box, matrix = nets.boxes(shape, 2, 0.4), nets.signed_outputs(graph)
    for rows in (True, False):
        sparse, full = (
            nets.alpha_crown(
                graph,
                box,
                matrix,
                AlphaOptions(iterations=2),
                BoundOptions(sparse_rows=rows, sparse_alpha=alpha),
            )
            for alpha in (True, False)
        )
        torch.testing.assert_close(sparse.lower, full.lower, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "conv", "mixed", "product", "deep", "residual"])
@pytest.mark.parametrize("seed", range(70, 74))
def test_sparse_rows_change_no_bound(name: str, seed: int) -> None:
    """Field case 28. Bounds of stable neurons must not tighten the images above them."""
    sparse, full = with_and_without_sparse_rows(name, seed)
    torch.testing.assert_close(sparse, full, rtol=1e-9, atol=1e-9)


def with_and_without_sparse_rows(name: str, seed: int) -> tuple[Tensor, Tensor]:
    module, shape = nets.make(name, seed)
    graph = nets.graph_of(module, shape)
    box, matrix = nets.boxes(shape, 2, 0.4), nets.signed_outputs(graph)
    _, sparse = nets.crown(graph, box, matrix, BoundOptions(sparse_rows=True))
    _, full = nets.crown(graph, box, matrix, BoundOptions(sparse_rows=False))
    return sparse, full
