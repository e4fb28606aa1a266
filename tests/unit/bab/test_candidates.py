"""Neurons worth trying are tried once.

A failure means that time goes into the same children twice, or that a candidate is lost.
"""

from __future__ import annotations

import pytest
import torch

from complete_verifier.bab.branching import Scores, candidates, choose, drawn_from_paths

BATCH, FEATURES = 40, 12


def _scores() -> Scores:
    generator = torch.Generator().manual_seed(4)
    tables = [torch.rand(BATCH, FEATURES, generator=generator) for _ in range(3)]
    return Scores(*tables)


@pytest.mark.parametrize("count", [1, 3, 5, FEATURES])
def test_each_comes_once_at_its_first_place(count: int) -> None:
    scores = _scores()
    found = candidates(scores, "kfsb", count)
    widths = []
    for own, gap, intercept in zip(found, scores.gap, scores.intercept, strict=True):
        both = [*gap.topk(count).indices.tolist(), *intercept.topk(count).indices.tolist()]
        expected = list(dict.fromkeys(both))
        widths.append(len(expected))
        assert own.tolist() == expected + [-1] * (found.shape[1] - len(expected))
    assert found.shape[1] == max(widths) <= 2 * count
    assert min(widths) < 2 * count


def test_the_choice_is_that_of_trying_all_twice() -> None:
    scores = _scores()
    margins = torch.rand(BATCH, FEATURES, 2, generator=torch.Generator().manual_seed(5)).double()

    def evaluate(tried: torch.Tensor) -> torch.Tensor:
        return margins[torch.arange(BATCH), tried].transpose(1, 2)

    chosen = choose(scores, "kfsb", 4, "min", evaluate, lambda: scores.gap)
    tables = (scores.gap, scores.intercept)
    every = torch.cat([table.topk(4, dim=1).indices for table in tables], dim=1)
    best = margins.amin(2).gather(1, every).argmax(dim=1, keepdim=True)
    assert torch.equal(chosen, every.gather(1, best).squeeze(1))


def test_random_choices_follow_from_path_and_seed_alone() -> None:
    """Whatever batch a subproblem is in, and on whichever rank."""
    path = torch.tensor([1, -5, 1 << 62, 2])
    drawn = drawn_from_paths(path, 7, 2000)
    assert torch.equal(drawn_from_paths(path[2:3], 7, 2000), drawn[2:3])
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    assert bool(((drawn.mean(dim=1) - 0.5).abs() < 0.03).all())
    assert bool(((drawn.var(dim=1) - 1 / 12).abs() < 0.01).all())
    assert drawn.unique().numel() > 7990
    assert not torch.equal(drawn_from_paths(path, 8, 2000), drawn)
