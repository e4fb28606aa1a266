"""Descent from given points, and its use in the tree.

A failure is a claim without confirmation, a point outside the box, or a violation beside the best
known point that is missed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.bab.tree_attack import is_due
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import at_most, region


def bowl(x: torch.Tensor) -> torch.Tensor:
    """Two outputs, smallest at (0.3, -0.2): the squared distance, and the same plus a slope."""
    distance = ((x - torch.tensor([0.3, -0.2])) ** 2).sum(dim=1, keepdim=True)
    return torch.cat([distance, distance + x[:, :1]], dim=1)


def accepting(where: Region, seen: list[np.ndarray]):
    def accept(point: np.ndarray) -> Counterexample | None:
        seen.append(point)
        outputs = bowl(torch.from_numpy(point)[None])[0].numpy()
        assert where.contains_float32(point) and where.violated_by(outputs)
        return Counterexample(point, outputs)

    return accept


CORNERS = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]], dtype=np.float32)


def test_a_few_steps_find_what_the_given_points_miss() -> None:
    where, seen = region([-1, -1], [1, 1], at_most([1.0, 0.0], 0.02)), []
    assert descend(bowl, where, CORNERS, accepting(where, seen), steps=0) is None
    found = descend(bowl, where, CORNERS, accepting(where, seen), steps=10)
    assert found is not None and len(seen) == 1


def test_every_row_of_a_conjunction_counts_and_any_clause_will_do() -> None:
    both = Clause(np.array([[1.0, 0.0], [0.0, -1.0]]), np.array([0.15, -0.4]))
    where = region([-1, -1], [1, 1], at_most([1.0, 0.0], -1.0), both)
    seen: list[np.ndarray] = []
    found = descend(bowl, where, CORNERS, accepting(where, seen), steps=12)
    assert found is not None
    assert found.outputs[0] <= 0.15 and found.outputs[1] >= 0.4


def test_points_outside_are_moved_into_the_box_and_refused_ones_do_not_end_the_search() -> None:
    where = region([0.5, -1], [1, 1], at_most([1.0, 0.0], 0.06))
    asked: list[np.ndarray] = []

    def refuse(point: np.ndarray) -> None:
        assert where.contains_float32(point)
        asked.append(point)

    far = np.array([[-5.0, 5.0]], dtype=np.float32)
    assert descend(bowl, where, far, refuse, steps=12) is None
    assert len(asked) > 1


def test_outputs_that_are_not_finite_are_no_violation() -> None:
    where = region([-1, -1], [1, 1], at_most([1.0, 0.0], 0.0))

    def broken(x: torch.Tensor) -> torch.Tensor:
        return bowl(x) * torch.nan

    def accept(point: np.ndarray) -> None:
        raise AssertionError("a NaN was offered")

    assert descend(broken, where, CORNERS, accept, steps=3) is None
    assert descend(bowl, where, CORNERS[:0], accept, steps=3) is None


@pytest.mark.parametrize("period", [16, 32])
def test_points_are_moved_often_at_first_and_rarely_later(period: int) -> None:
    due = [number for number in range(100) if is_due(number, period)]
    assert due[:5] == [0, 1, 2, 4, 8]
    assert all(number % period == 0 for number in due if number > period)
