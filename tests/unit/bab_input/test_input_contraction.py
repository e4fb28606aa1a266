"""No point at which a clause may hold is cut off, and what no clause can use is.

A failure of the first kind loses counterexamples: a false proof.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from complete_verifier.bab.input_contraction import Planes, contract

NONE = torch.zeros(1, 1, dtype=torch.bool)


def planes_of(slopes: Tensor, offsets: Tensor, low: Tensor, high: Tensor, of: Tensor) -> Planes:
    """The planes ``slopes . x + offsets`` over float32 boxes."""
    least = slopes.clamp(min=0) * low.double().unsqueeze(1)
    least = (least + slopes.clamp(max=0) * high.double().unsqueeze(1)).sum(-1) + offsets
    return Planes(slopes, least, of)


def test_every_point_that_satisfies_a_clause_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    kept, cut = 0, 0
    of = torch.tensor([0, 0, 1, 2, 2, 2])
    for _ in range(20):
        low = torch.randn(8, 3, generator=generator)
        high = low + torch.rand(8, 3, generator=generator)
        slopes = torch.randn(8, 6, 3, generator=generator).double()
        slopes[:, :, 1] *= (torch.rand(8, 6, generator=generator) < 0.5).double()
        offsets = torch.randn(8, 6, generator=generator).double() * 2
        excluded = torch.rand(8, 3, generator=generator) < 0.2
        left = contract(low, high, planes_of(slopes, offsets, low, high, of), excluded)
        share = torch.rand(2000, 8, 3, generator=generator)
        share[:200] = share[:200].round()
        points = low + share * (high - low)
        below = (points.double().unsqueeze(2) * slopes).sum(-1) + offsets <= 0  # [P, B, K]
        for clause in range(3):
            holds = below[:, :, of == clause].all(dim=2)
            holds[:, excluded[:, clause]] = False
            assert not bool(holds[:, left.empty[:, clause]].any())
            inside = ((points >= left.lower) & (points <= left.upper)).all(dim=2)
            assert bool(inside[holds].all())
            kept += int(holds.sum())
        assert bool((left.lower >= low).all()) and bool((left.upper <= high).all())
        cut += int((left.upper - left.lower < 0.7 * (high - low)).sum())
    assert kept > 1000 and cut > 15


def test_a_single_plane_cuts_exactly() -> None:
    low, high = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    of = torch.zeros(1, dtype=torch.int64)
    slopes = torch.tensor([[[4.0, -1.0]]]).double()
    left = contract(
        low, high, planes_of(slopes, torch.tensor([[0.0]]).double(), low, high, of), NONE
    )
    assert left.lower.tolist() == [[0.0, 0.0]]
    assert abs(float(left.upper[0, 0]) - 0.25) < 1e-6 and float(left.upper[0, 1]) == 1.0


def test_clauses_of_one_plane_each_are_cut_at_once_as_they_are_in_rounds() -> None:
    generator = torch.Generator().manual_seed(1)
    of, empty, cut = torch.arange(4), 0, 0
    for _ in range(10):
        low = torch.randn(16, 3, generator=generator)
        high = low + torch.rand(16, 3, generator=generator)
        slopes = torch.randn(16, 4, 3, generator=generator).double()
        slopes[0, 1, 2] = torch.nan
        offsets = torch.randn(16, 4, generator=generator).double()
        excluded = torch.rand(16, 4, generator=generator) < 0.6
        planes = planes_of(slopes, offsets, low, high, of)
        rounds = contract(low, high, planes, excluded)
        once = contract(low, high, replace(planes, one_each=True), excluded)
        assert torch.equal(once.empty, rounds.empty)
        for name in ("lower", "upper", "least"):
            torch.testing.assert_close(getattr(once, name), getattr(rounds, name))
        empty += int((rounds.empty & ~excluded).sum())
        cut += int((rounds.upper - rounds.lower < 0.9 * (high - low)).sum())
    assert empty > 20 and cut > 20


def test_planes_of_one_clause_exclude_together_what_neither_does_alone() -> None:
    low, high = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    slopes = torch.tensor([[[1.0], [-1.0]]]).double()
    offsets = torch.tensor([[-0.3, 0.7]]).double()  # x <= 0.3 and x >= 0.7
    together = torch.zeros(2, dtype=torch.int64)
    left = contract(low, high, planes_of(slopes, offsets, low, high, together), NONE)
    assert left.empty.tolist() == [[True]]
    apart = torch.tensor([0, 1])
    left = contract(low, high, planes_of(slopes, offsets, low, high, apart), NONE.expand(1, 2))
    assert left.empty.tolist() == [[False, False]]
    assert (float(left.lower), float(left.upper)) == (0.0, 1.0)


def test_planes_that_are_not_finite_cut_nothing() -> None:
    low, high = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    of = torch.zeros(2, dtype=torch.int64)
    for slopes, least in (
        ([[[torch.nan], [0.0]]], [[5.0, -1.0]]),
        ([[[torch.inf], [1.0]]], [[5.0, -2.0]]),
        ([[[1.0], [0.0]]], [[-torch.inf, -torch.inf]]),
    ):
        planes = Planes(torch.tensor(slopes).double(), torch.tensor(least).double(), of)
        left = contract(low, high, planes, NONE)
        assert left.empty.tolist() == [[False]]
        assert (float(left.lower), float(left.upper)) == (0.0, 1.0)
