"""The pool loses nothing, invents nothing, and hands boxes out in one total order.

The reference is a plain Python list, sorted. A failure would lose a subproblem (a false proof) or
make two runs differ.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from complete_verifier.bab.input_pool import Boxes, BoxPool, halve, midpoint, root_boxes


def random_boxes(generator: np.random.Generator, count: int, first: int) -> Boxes:
    """Boxes with few distinct margins, so that ties are the rule; `lower` holds a serial number."""
    serial = torch.arange(first, first + count, dtype=torch.float32).unsqueeze(1)
    return Boxes(
        lower=serial.expand(-1, 2).contiguous(),
        upper=serial + torch.ones(1, 2),
        score=torch.zeros(count, 2),
        margin=torch.from_numpy(generator.integers(-3, 0, size=count).astype(np.float64)),
        path=torch.from_numpy(generator.permutation(10_000)[:count] * 10_000 + first),
        key=torch.arange(first, first + count),
        depth=torch.from_numpy(generator.integers(0, 5, size=count).astype(np.int32)),
        excluded=torch.zeros(count, 1, dtype=torch.bool),
    )


@pytest.mark.parametrize("worst_first", [True, False])
def test_pool_equals_a_sorted_list(worst_first: bool) -> None:
    generator = np.random.default_rng(5)
    pool, reference, serial = BoxPool(worst_first=worst_first), [], 0
    for _ in range(60):
        boxes = random_boxes(generator, int(generator.integers(0, 40)), serial)
        serial += boxes.count
        pool.add(boxes)
        rows = zip(
            boxes.depth.tolist(),
            boxes.margin.tolist(),
            boxes.path.tolist(),
            boxes.lower[:, 0].tolist(),
            strict=True,
        )
        reference += [
            ((margin, path) if worst_first else (-depth, margin, path), name)
            for depth, margin, path, name in rows
        ]
        reference.sort()
        wanted = int(generator.integers(0, 40))
        if serial == 0:
            continue
        taken = pool.take(wanted)
        assert taken.lower[:, 0].tolist() == [name for _, name in reference[:wanted]]
        assert taken.upper[:, 0].tolist() == [name + 1 for _, name in reference[:wanted]]
        del reference[:wanted]
        assert len(pool) == len(reference)
        worst = min((key[-2] for key, _ in reference), default=float("inf"))
        assert pool.worst_margin == worst


def test_pool_bytes_cover_its_slabs_and_a_box_is_small() -> None:
    pool = BoxPool()
    assert pool.num_bytes == 0
    pool.add(random_boxes(np.random.default_rng(0), 1000, 0))
    per_box = 3 * 2 * 4 + 3 * 8 + 4 + 1
    assert 1000 * per_box <= pool.num_bytes <= 1500 * per_box


def test_taking_from_a_pool_never_filled_says_so() -> None:
    with pytest.raises(ValueError, match="empty"):
        BoxPool().take(1)


def test_halves_share_their_splitting_point_and_cover_the_parent() -> None:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(200, 3, generator=generator) * 10 ** torch.arange(-6.0, 3.0, 3.0)
    upper = lower + torch.rand(200, 3, generator=generator).clamp(min=1e-3)
    parents = Boxes(
        lower=lower,
        upper=upper,
        score=torch.rand(200, 3, generator=generator),
        margin=torch.arange(200, dtype=torch.float64),
        path=torch.zeros(200, dtype=torch.int64),
        key=torch.arange(200),
        depth=torch.zeros(200, dtype=torch.int32),
        excluded=torch.zeros(200, 2, dtype=torch.bool),
    )
    dims = torch.randint(0, 3, (200,), generator=generator)
    both = halve(parents, dims)
    first, second = both.select(torch.arange(0, 400, 2)), both.select(torch.arange(1, 400, 2))
    column = dims.unsqueeze(1)
    assert torch.equal(first.lower, lower)
    assert torch.equal(second.upper, upper)
    assert torch.equal(first.upper.gather(1, column), second.lower.gather(1, column))
    other = torch.ones_like(lower, dtype=torch.bool).scatter(1, column, False)
    assert torch.equal(first.upper[other], upper[other])
    assert torch.equal(second.lower[other], lower[other])
    assert torch.equal(first.margin, parents.margin)
    assert bool((first.upper > first.lower).all() & (second.upper > second.lower).all())


def test_paths_are_unique_and_neighbours_stay_together() -> None:
    boxes = root_boxes(torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.bool))
    for _ in range(8):
        boxes = halve(boxes, torch.zeros(boxes.count, dtype=torch.int64))
    assert boxes.path.unique().numel() == boxes.key.unique().numel() == 256
    by_path = boxes.select(boxes.path.argsort())
    assert torch.equal(by_path.upper[:-1, 0], by_path.lower[1:, 0])


@pytest.mark.parametrize(
    ("low", "high"),
    [(-3e38, 3e38), (1.0, 1.0 + 2**-22), (1e-45, 4e-45), (-1e-45, 1e-45), (0.0, 3e-45)],
)
def test_midpoint_lies_strictly_inside_where_a_number_does(low: float, high: float) -> None:
    lower, upper = torch.tensor([low]), torch.tensor([high])
    middle = midpoint(lower, upper)
    assert bool((lower < middle) & (middle < upper))


@pytest.mark.parametrize("low", [0.0, 1.0, -1.0, 1e-45, 3e38])
def test_neighbouring_numbers_cannot_be_split(low: float) -> None:
    lower = torch.tensor([low])
    upper = torch.nextafter(lower, torch.tensor([torch.inf]))
    for high in (lower, upper):
        boxes = root_boxes(lower, high, torch.zeros(1, dtype=torch.bool))
        assert not bool(boxes.splittable.any())
