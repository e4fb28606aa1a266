"""Bounds over balls of norm 1 and 2 hold at their points, and are exact for an affine network.

A failure of the first kind is a false proof; one of the second means that the ball is not used.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auto_LiRPA_patches.engine.backward import concretize
from auto_LiRPA_patches.operators.ball import BallBox
from complete_verifier import Specification, Verdict, Verifier
from complete_verifier.bounds.input_box import input_box
from complete_verifier.specification.robustness import Robustness, lp_region

SIZE = 6


class Shape:
    """What `input_box` asks of a graph."""

    input_shape = (2, 3)
    device = torch.device("cpu")

    def __init__(self, precision: torch.dtype) -> None:
        self.precision = precision


def ball_box(norm: float, precision: torch.dtype, seed: int = 0) -> tuple[BallBox, np.ndarray]:
    """A box of a random ball, and points of the ball, most of them on its surface."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.3, 3, SIZE)
    region = lp_region(rng.normal(size=SIZE), 0.4, norm, scale=scale)
    assert region.ball is not None
    points = region.ball.toward(region.ball.center + rng.normal(size=(4000, SIZE)))
    box = input_box(Shape(precision), region)  # type: ignore[arg-type]
    assert isinstance(box, BallBox)
    return box, points


@pytest.mark.parametrize("norm", [1.0, 2.0])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_minimum_lies_below_all_points_and_is_attained(
    norm: float, precision: torch.dtype
) -> None:
    box, points = ball_box(norm, precision)
    coeffs = torch.randn(40, 1, SIZE, dtype=precision)
    lower = concretize(coeffs, box)[:, 0].double()
    values = coeffs[:, 0].double() @ torch.from_numpy(points).T
    slack = 8 * torch.finfo(precision).eps * coeffs.abs().sum((1, 2)).double() * 3
    assert (lower <= values.amin(1) + slack).all()
    # The best point: along the dual direction.
    scaled = coeffs[:, 0].double() / box.weights.flatten().double()
    dual = scaled.norm(dim=1) if norm == 2 else scaled.abs().amax(1)
    exact = coeffs[:, 0].double() @ box.middle.flatten().double() - 0.4 * dual
    torch.testing.assert_close(lower, exact, rtol=1e-5, atol=1e-5)
    corner = concretize(coeffs, super_box(box))[:, 0].double()
    assert (lower > corner + 0.01).all()


def super_box(box: BallBox) -> object:
    from auto_LiRPA_patches.operators.interval import Interval

    return Interval(box.lower, box.upper)


def test_the_gradient_follows_the_tighter_bound() -> None:
    box, _ = ball_box(2.0, torch.float64)
    coeffs = torch.randn(3, 1, SIZE, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: concretize(rows, box), (coeffs,))


@pytest.mark.parametrize("norm", [1.0, 2.0])
def test_an_affine_network_is_decided_at_the_exact_radius(norm: float) -> None:
    """The least radius that reaches the boundary is known; both sides of it must be told apart."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(SIZE, 2)
    x = torch.rand(SIZE)
    outputs = layer(x)
    label = int(outputs.argmax())
    row = (layer.weight[label] - layer.weight[1 - label]).detach().double()
    margin = float((outputs[label] - outputs[1 - label]).detach())
    dual = float(row.norm() if norm == 2 else row.abs().max())
    config = {"general.device": "cpu", "bab.timeout": 20, "general.complete_verifier": "skip"}
    with Verifier(config) as verifier:
        for factor, expected in ((0.99, Verdict.UNSAT), (1.01, Verdict.SAT)):
            center = x.double().numpy()
            region = lp_region(center, factor * margin / dual, norm)
            statement = Robustness(center, region, label, shape=(SIZE,))
            result = verifier.verify(layer, statement)
            assert result.verdict is expected, (norm, factor, result.reason)
            if result.counterexample is not None:
                assert region.contains_float32(result.counterexample.inputs)


def test_the_whole_box_is_not_proven_where_only_the_ball_is_safe() -> None:
    torch.manual_seed(1)
    layer = torch.nn.Linear(64, 2)
    x = torch.rand(64)
    outputs = layer(x)
    label = int(outputs.argmax())
    row = (layer.weight[label] - layer.weight[1 - label]).detach()
    radius = 0.9 * float((outputs.max() - outputs.min()).detach() / row.norm())
    config = {"general.device": "cpu", "bab.timeout": 20, "general.complete_verifier": "skip"}
    center = x.double().numpy()
    region = lp_region(center, radius, 2.0)
    with Verifier(config) as verifier:
        ball = verifier.verify(layer, Robustness(center, region, label, shape=(64,)))
        box = verifier.verify(layer, Specification.linf(x, radius, label))
    assert (ball.verdict, box.verdict) == (Verdict.UNSAT, Verdict.SAT)
