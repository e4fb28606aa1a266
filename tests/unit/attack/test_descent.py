"""Descent from given points, and its use in the tree.

A failure is a claim without confirmation, a point outside the box, or a violation beside the best
known point that is missed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auto_LiRPA_patches.engine.options import BoundOptions
from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.descent import descend
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.tree_attack import TreeAttack, is_due
from complete_verifier.specification import Clause, Region
from tests.unit.bounds.region_cases import at_most, mlp, network_of, region


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


def test_the_tree_moves_the_points_of_a_batch_only_in_rounds_that_are_due() -> None:
    torch.manual_seed(3)
    network = network_of(mlp(4, 16, 12, 2), (4,))
    grid = torch.rand(20_000, 4) * 2 - 1
    values = (network.forward(grid) @ torch.tensor([1.0, -1.0])).detach()
    points = grid[values > values.median()][:50].numpy()
    limit = float(values.min() + 0.1 * (values.median() - values.min()))
    where = region([-1] * 4, [1] * 4, at_most([1.0, -1.0], limit))

    def confirm(asked: Region, point: np.ndarray) -> Counterexample | None:
        outputs = network.forward(torch.from_numpy(point)[None])[0].detach().numpy()
        assert asked.contains_float32(point) and asked.violated_by(outputs)
        return Counterexample(point, outputs)

    context = BabContext(network=network, region=where, bounds=BoundOptions(), confirm=confirm)
    attack = TreeAttack(context, period=16)
    assert attack.look(points, 3) is None
    assert attack.look(points, 4) is not None
    assert attack.look(points[:0], 4) is None
    nearest = grid[values.argmin()][None].numpy()
    assert attack.look(np.concatenate([points, nearest]), 3) is not None
