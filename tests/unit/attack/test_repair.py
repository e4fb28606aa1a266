"""Newton steps meet all rows of a clause at once, where steps along signs go past.

A failure is a violated property that ends as a timeout.
"""

from __future__ import annotations

import numpy as np
import torch

from complete_verifier.attack.counterexample import Counterexample
from complete_verifier.attack.repair import repair
from complete_verifier.specification import Clause, Region


def thin_clause() -> Clause:
    """``|y_0 - 0.3| <= 1e-6``, ``|y_1| <= 1e-6`` and ``y_2 >= 0.1``."""
    rows = [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, -1]]
    return Clause(np.array(rows, dtype=float), np.array([0.300001, -0.299999, 1e-6, 1e-6, -0.1]))


def curved(x: torch.Tensor) -> torch.Tensor:
    """Three outputs, smooth and not linear, of four inputs."""
    return torch.stack(
        [x[:, 0] * x[:, 1] + x[:, 2], torch.sin(3 * x[:, 1]) + x[:, 3], x[:, 0] - x[:, 2] ** 2],
        dim=1,
    )


def test_points_reach_a_thin_set_and_stay_in_the_box() -> None:
    where = Region(np.full(4, -1.0), np.full(4, 1.0), (thin_clause(),))
    seen: list[np.ndarray] = []

    def accept(point: np.ndarray) -> Counterexample | None:
        seen.append(point)
        return Counterexample(inputs=point, outputs=np.zeros(3, dtype=np.float32))

    points = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
    with torch.no_grad():  # as a caller may be
        found = repair(curved, where, points, accept, steps=8)
    assert found is not None and len(seen) == 1
    assert where.contains_float32(seen[0])
    assert where.violated_by(curved(torch.from_numpy(seen[0][None]))[0].double().numpy())


def test_a_set_that_is_empty_and_outputs_that_are_not_finite_end_in_nothing() -> None:
    rows = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    where = Region(np.full(4, -1.0), np.full(4, 1.0), (Clause(rows, np.array([-5.0, -5.0])),))
    points = np.zeros((3, 4), dtype=np.float32)

    def refuse(point: np.ndarray) -> Counterexample | None:
        raise AssertionError("nothing here satisfies the clause")

    assert repair(curved, where, points, refuse, steps=4) is None
    assert repair(lambda x: curved(x) * torch.inf, where, points, refuse, steps=4) is None
    assert repair(curved, where, points[:0], refuse, steps=4) is None
