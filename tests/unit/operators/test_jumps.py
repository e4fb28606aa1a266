"""Lines around functions with jumps, and the values where no jump lies between the bounds.

A failure means that a condition is taken for decided which is not: a false proof of any size.
"""

from __future__ import annotations

import pytest
import torch

from auto_LiRPA_patches.operators.interval import Interval
from auto_LiRPA_patches.operators.jumps import Floor, Jumps, UnitStep
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from tests.unit.operators.activation_checks import PRECISIONS, assert_encloses, intervals, points

WEIGHTS = OneRankWeights()
OPERATORS = {"step": UnitStep("f", ((1,),), (1,)), "floor": Floor("f", ((1,),), (1,))}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPERATORS)
def test_lines_and_intervals_enclose_the_function(name: str, precision: torch.dtype) -> None:
    operator, box = OPERATORS[name], intervals(precision)
    image, value = operator.interval(WEIGHTS, box), operator.function(points(box))
    assert bool((image.lower.double() <= value).all() & (value <= image.upper.double()).all())
    relaxation = operator.relax(box, None)
    start = operator.initial_alpha(relaxation).unsqueeze(1)
    for alpha in (None, start, torch.zeros_like(start), torch.ones_like(start)):
        lines = operator.lines(relaxation, alpha)
        assert_encloses(operator, lines, box)


@pytest.mark.parametrize(
    ("operator", "lower", "upper", "least", "most"),
    [
        (OPERATORS["step"], 0.0, 0.0, 0, 0),  # 0 > 0 is false
        (OPERATORS["step"], 0.0, 1.0, 0, 1),
        (OPERATORS["step"], 0.25, 1.0, 1, 1),
        (OPERATORS["step"], -1.0, 0.0, 0, 1),  # what is called 0 may be rounding of 1e-8
        (OPERATORS["step"], float("nan"), float("nan"), 0, 1),
        (UnitStep("f", ((1,),), (1,), threshold=1e6), 0.5, 2.0, 0, 1),  # 1e6 + 0.5 - 1e6
        (OPERATORS["floor"], 2.1, 2.9, 2, 2),
        (OPERATORS["floor"], 2.0, 2.9, 1, 2),
        (OPERATORS["floor"], -0.5, 0.5, -1, 0),
        (OPERATORS["floor"], 0.5, 3e9, -torch.inf, torch.inf),
    ],
)
def test_a_value_is_decided_only_beyond_rounding(
    operator: Jumps, lower: float, upper: float, least: float, most: float
) -> None:
    box = Interval(torch.tensor([[lower]]), torch.tensor([[upper]]))
    image = operator.interval(WEIGHTS, box)
    assert (float(image.lower), float(image.upper)) == (least, most)
    own = operator.relax(box, None)
    assert (float(own.least), float(own.most)) == (least, most)


def test_an_attack_gets_a_gradient_of_zero() -> None:
    x = torch.tensor([[0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(OPERATORS["step"].forward(WEIGHTS, x).sum(), x)
    assert float(gradient) == 0
