"""CROWN and α-CROWN against the exact minimum, and against CROWN written anew in numpy.

Sampling rarely meets the minimum; a mixed-integer program does. A failure of the first kind is a
false bound that samples would miss; of the second, a bound looser or other than CROWN's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact_minimum import SLACK, Layer, affine_layers, minimum
from torch import Tensor, nn

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.operators.interval import Interval
from tests.unit.engine import nets


def tiny_conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 2, 2, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )


CASES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], float]] = {
    "one-layer": (lambda: nets.mlp(3, 8, 3), (3,), 1.0),
    "two-layers": (lambda: nets.mlp(3, 6, 5, 3), (3,), 1.0),
    "three-layers": (lambda: nets.mlp(2, 5, 5, 5, 2), (2,), 0.5),
    "wide-box": (lambda: nets.mlp(2, 6, 4, 2), (2,), 20.0),
    "conv": (tiny_conv, (1, 3, 3), 1.0),
}


def exact_minima(
    module: nn.Sequential, shape: tuple[int, ...], box: Interval, matrix: Tensor
) -> Tensor:
    """``[S, B]``."""
    layers = affine_layers(module, shape)
    return torch.tensor(
        [
            [
                minimum(layers, row.numpy(), low.flatten().numpy(), high.flatten().numpy())
                for low, high in zip(box.lower, box.upper, strict=True)
            ]
            for row in matrix
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [40, 41])
def test_no_bound_exceeds_the_exact_minimum(name: str, seed: int) -> None:
    build, shape, radius = CASES[name]
    torch.manual_seed(seed)
    module = build()
    graph = nets.graph_of(module, shape)
    box = nets.boxes(shape, 2, radius)
    matrix = torch.randn(2, graph.output_shape[0], dtype=torch.float64)
    exact = exact_minima(module, shape, box, matrix)
    _, lower = nets.crown(graph, box, matrix)
    result = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=20))
    assert bool((lower <= exact + SLACK).all())
    assert bool((result.lower <= exact + SLACK).all())
    # The program is about this very network: some point comes close to its minimum from above.
    values = torch.einsum("so,pbo->psb", matrix, nets.outputs_of(graph, nets.points_of(box, 4000)))
    gap = values.amin(0) - exact
    assert bool((gap >= -SLACK).all())
    spread = values.amax(0) - values.amin(0)
    assert bool((gap <= 0.5 * spread + SLACK).all())


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_exact_where_no_neuron_is_unstable(name: str) -> None:
    build, shape, _ = CASES[name]
    torch.manual_seed(42)
    module = build()
    graph = nets.graph_of(module, shape)
    center = torch.randn(2, *shape, dtype=torch.float64)
    box = Interval(center - 1e-4, center + 1e-4)
    matrix = torch.randn(3, graph.output_shape[0], dtype=torch.float64)
    state, lower = nets.crown(graph, box, matrix)
    for index in graph.relaxed:
        bounds = state.bounds[graph.nodes[index].inputs[0]]
        assert bool(((bounds.lower >= 0) | (bounds.upper <= 0)).all())
    torch.testing.assert_close(
        lower, exact_minima(module, shape, box, matrix), rtol=1e-6, atol=1e-7
    )


def test_alpha_crown_reaches_the_exact_minimum_of_a_convex_net() -> None:
    """Positive last weights make the net convex, and the best α's bound its minimum.

    min over x of max over α equals max over α of min over x (bilinear, convex sets), so what is
    missing can only be the optimiser's fault.
    """
    torch.manual_seed(43)
    module = nets.mlp(3, 10, 1)
    with torch.no_grad():
        nets.layer(module, 2).weight.abs_()
    graph = nets.graph_of(module, (3,))
    box = Interval(-torch.ones(1, 3).double(), torch.ones(1, 3).double())
    matrix = torch.ones(1, 1).double()
    exact = exact_minima(module, (3,), box, matrix)
    _, lower = nets.crown(graph, box, matrix)
    options = AlphaOptions(iterations=300, early_stop=False)
    result = nets.alpha_crown(graph, box, matrix, options)
    assert float(exact - lower) > 0.02
    assert float(exact - result.lower) < 0.1 * float(exact - lower)
    assert bool((result.lower <= exact + SLACK).all())


def numpy_crown(
    layers: list[Layer], rows: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """CROWN's lower bounds of ``rows @ network`` with the adaptive slope, intervals intersected."""
    known: list[tuple[np.ndarray, np.ndarray]] = []

    def backward(coefficients: np.ndarray, depth: int) -> np.ndarray:
        bias = np.zeros(len(coefficients))
        for level in range(depth, -1, -1):
            matrix, offset = layers[level]
            bias += coefficients @ offset
            coefficients = coefficients @ matrix
            if level == 0:
                break
            below, above = known[level - 1]
            for n in range(coefficients.shape[1]):
                low_n, high_n, column = below[n], above[n], coefficients[:, n].copy()
                if low_n >= 0 or high_n <= 0:
                    coefficients[:, n] = column * (low_n >= 0)
                    continue
                chord = high_n / (high_n - low_n)
                bias += np.where(column < 0, column * -low_n * chord, 0.0)
                coefficients[:, n] = column * np.where(column < 0, chord, float(high_n > -low_n))
        center, radius = (low + high) / 2, (high - low) / 2
        return bias + coefficients @ center - np.abs(coefficients) @ radius

    reach = low, high
    for depth, (matrix, offset) in enumerate(layers[:-1]):
        middle, half = matrix @ sum(reach) / 2 + offset, np.abs(matrix) @ (reach[1] - reach[0]) / 2
        identity = np.eye(len(offset))
        lower = np.maximum(backward(identity, depth), middle - half)
        upper = np.minimum(-backward(-identity, depth), middle + half)
        known.append((lower, upper))
        reach = np.maximum(lower, 0), np.maximum(upper, 0)
    return backward(rows, len(layers) - 1)


@pytest.mark.parametrize("sizes", [(4, 9, 3), (3, 7, 6, 2), (5, 8, 8, 8, 8, 3)])
@pytest.mark.parametrize("radius", [0.1, 1.0])
def test_crown_equals_crown_written_in_numpy(sizes: tuple[int, ...], radius: float) -> None:
    torch.manual_seed(44)
    module = nets.mlp(*sizes)
    graph = nets.graph_of(module, sizes[:1])
    box = nets.boxes(sizes[:1], 2, radius)
    matrix = nets.signed_outputs(graph)
    _, lower = nets.crown(graph, box, matrix, BoundOptions(sparse_rows=False))
    layers = affine_layers(module, sizes[:1])
    for column in range(2):
        expected = numpy_crown(
            layers, matrix.numpy(), box.lower[column].numpy(), box.upper[column].numpy()
        )
        np.testing.assert_allclose(lower[:, column].numpy(), expected, rtol=1e-9, atol=1e-9)
