"""Memory that runs out makes bounds slower, or ends α-CROWN early; it never makes them wrong.

A failure means that a run dies, or worse, that it goes on with bounds nobody computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from auto_LiRPA_patches.engine import row_block, schedule
from auto_LiRPA_patches.engine.adam import ProjectedAdam
from auto_LiRPA_patches.engine.backward import lower_bounds
from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.errors import MemoryRanOutError
from tests.unit.engine import nets


def _holds(rows: int) -> Callable[..., Tensor]:
    """A backward pass on a machine whose memory holds so many rows."""

    def limited(*arguments: Any) -> Tensor:
        if arguments[3].count > rows:
            raise torch.OutOfMemoryError("planted: not enough memory")
        return lower_bounds(*arguments)

    return limited


def _problem() -> tuple[Any, Any, Tensor]:
    module, shape = nets.make("deep", seed=3)
    graph = nets.graph_of(module, shape)
    return graph, nets.boxes(shape, 2, 0.6), nets.signed_outputs(graph)


def test_torch_tells_in_two_ways_that_memory_ran_out() -> None:
    assert ran_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert ran_out_of_memory(caught.value)
    assert not ran_out_of_memory(RuntimeError("expected scalar type Float"))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_chunks_are_halved_until_they_fit(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    graph, box, matrix = _problem()
    _, whole = nets.crown(graph, box, matrix)
    monkeypatch.setattr(schedule, "lower_bounds", _holds(rows))
    told: list[str] = []
    _, halved = nets.crown(graph, box, matrix, BoundOptions(told=told.append))
    torch.testing.assert_close(halved, whole)
    assert told and all("memory ran out" in sentence for sentence in told)


@pytest.mark.parametrize("options", [{"alone": False}, {"tile_rows": 4}], ids=str)
def test_chunks_stay_as_they_are_where_others_wait_or_in_tiles(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    graph, box, matrix = _problem()
    monkeypatch.setattr(schedule, "lower_bounds", _holds(1))
    expected = MemoryRanOutError if options.get("alone", True) else torch.OutOfMemoryError
    with pytest.raises(expected):
        nets.crown(graph, box, matrix, BoundOptions(**options))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_alpha_crown_goes_on_or_ends_with_the_bounds_it_has(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    graph, box, matrix = _problem()
    whole = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=5))
    monkeypatch.setattr(row_block, "lower_bounds", _holds(rows))
    told: list[str] = []
    options = BoundOptions(told=told.append)
    found = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=5), options)
    assert told
    if rows:
        assert found.iterations == 5
        torch.testing.assert_close(found.lower, whole.lower)
    else:
        assert found.iterations == 0 and "ended early" in told[-1]
    assert not bool((found.lower > whole.lower + 1e-9).any())


@pytest.mark.parametrize("failures", [1, 2, 3, 99])
def test_a_gradient_that_does_not_fit_is_made_with_less_at_a_time(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    graph, box, matrix = _problem()
    whole = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=4))
    gradients, left = ProjectedAdam.gradients, [failures]

    def limited(adam: ProjectedAdam, loss: Tensor) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise torch.OutOfMemoryError("planted: not enough memory")
        return gradients(adam, loss)

    monkeypatch.setattr(ProjectedAdam, "gradients", limited)
    told: list[str] = []
    options = BoundOptions(told=told.append)
    found = nets.alpha_crown(graph, box, matrix, AlphaOptions(iterations=4), options)
    assert found.iterations == (0 if failures == 99 else 4)
    assert "computed twice" in told[0]
    if failures < 99:
        torch.testing.assert_close(found.lower, whole.lower)
    else:
        assert "ended early" in told[-1] and bool((found.lower <= whole.lower + 1e-9).all())
