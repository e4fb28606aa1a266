"""The meter against known sizes and against the profiler's allocator events.

A failure means that the memory claims of the sharding modes are measured wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind, count_as, counted_as
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter

KIB = 1024


def test_live_bytes_rise_and_fall_with_a_tensor() -> None:
    with MemoryMeter() as meter:
        tensor = torch.zeros(256)
        assert meter.live_bytes == KIB
        del tensor
        assert meter.live_bytes == 0
        assert meter.peak_bytes == KIB


def test_inference_mode_hides_nothing_that_an_operator_makes_on_the_way() -> None:
    """There operators made of others arrive whole: the product's copy of `left` was not counted."""
    left, right = torch.ones(8, 16, 16).transpose(0, 2), torch.ones(16, 16)
    peaks = []
    for context in (torch.no_grad(), torch.inference_mode()):
        with context, MemoryMeter() as meter:
            torch.nn.functional.linear(left.transpose(1, 2), right)
            torch.einsum("ijk,jl->kil", left, right)
        peaks.append(meter.peak_bytes)
    assert peaks[0] == peaks[1] > 8 * KIB


def test_views_of_one_storage_count_once() -> None:
    with MemoryMeter() as meter:
        tensor = torch.zeros(16, 16)
        view = tensor.T[2:]
        assert meter.live_bytes == KIB
        del tensor
        assert meter.live_bytes == KIB  # the view keeps the whole storage
        del view
        assert meter.live_bytes == 0


def test_tracked_tensors_count_once_and_until_freed() -> None:
    before = torch.zeros(256)
    with MemoryMeter() as meter:
        meter.track(before, before.view(16, 16))
        meter.mark_baseline()
        assert meter.baseline_bytes == KIB
        del before
        assert meter.live_bytes == 0


def test_a_resized_storage_counts_with_its_present_size() -> None:
    with MemoryMeter() as meter:
        tensor = torch.zeros(256)
        tensor.resize_(512)
        assert meter.live_bytes == 2 * KIB
        del tensor
        assert meter.live_bytes == 0


def test_mark_baseline_restarts_the_peak() -> None:
    with MemoryMeter() as meter:
        torch.zeros(10 * 256)
        meter.mark_baseline()
        assert meter.peak_bytes == 0
        torch.zeros(256)
        assert meter.peak_bytes == KIB


def test_numbers_stay_as_they_were_at_the_end_of_the_block() -> None:
    with MemoryMeter() as meter:
        kept = torch.zeros(256)
    del kept
    assert (meter.live_bytes, meter.peak_bytes) == (KIB, KIB)


def test_tensors_made_inside_the_backward_pass_are_seen() -> None:
    leaf = torch.zeros(256, requires_grad=True)
    with MemoryMeter() as meter:
        loss = leaf.exp().sum()  # keeps 1 KiB for the backward pass
        meter.mark_baseline()
        loss.backward()
        del loss
        assert meter.peak_bytes >= meter.baseline_bytes + KIB
        assert meter.live_bytes == KIB  # leaf.grad alone
        assert leaf.grad is not None


def test_tensors_made_inside_a_custom_function_are_seen() -> None:
    with MemoryMeter() as meter:
        _Scratch.apply(torch.zeros(1, requires_grad=True)).backward()
        assert meter.peak_bytes >= 64 * KIB
        assert meter.live_bytes < KIB


class _Scratch(torch.autograd.Function):
    """Identity whose backward pass, alone, needs 64 KiB for a moment."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient + torch.zeros(64 * 256).sum()


def _kib(by_kind: Mapping[MemoryKind, int]) -> dict[str, int]:
    return {kind.value: size // KIB for kind, size in by_kind.items() if size}


def test_bytes_are_counted_under_the_kind_of_the_block_they_are_made_in() -> None:
    before = torch.zeros(256)
    with MemoryMeter() as meter:
        meter.track(before, kind=MemoryKind.WEIGHTS)
        meter.mark_baseline()
        with counted_as(MemoryKind.COEFFICIENTS):
            rows = torch.zeros(512)
            with counted_as(MemoryKind.MULTIPLIERS):
                alpha = torch.zeros(768)
            rows = rows + 1
        rest = alpha + 1
        assert _kib(meter.baseline_by_kind) == {"weights": 1}
        del rows
        torch.zeros(256)  # below the peak: changes nothing
        peak = {"weights": 1, "a_matrices": 2, "alpha_beta": 3, "other": 3}
        assert _kib(meter.peak_by_kind) == peak
        del before, alpha, rest
    assert sum(meter.peak_by_kind.values()) == meter.peak_bytes == 9 * KIB


def test_a_mark_after_the_fact_reaches_the_peak_it_made() -> None:
    with MemoryMeter() as meter, counted_as(MemoryKind.COEFFICIENTS):
        buffer = torch.empty(256)
        count_as(MemoryKind.GATHERED, buffer)
        assert _kib(meter.peak_by_kind) == {"gathered_weights": 1}
        del buffer
        torch.zeros(128)
        assert _kib(meter.peak_by_kind) == {"gathered_weights": 1}


def test_arrays_count_where_they_are_named_until_they_are_freed() -> None:
    with MemoryMeter() as meter:
        slab = np.zeros(256, dtype=np.float32)
        count_as(MemoryKind.OTHER, slab, slab[10:])
        assert meter.live_bytes == KIB
        del slab
        assert meter.live_bytes == 0


def test_marks_without_a_meter_do_nothing() -> None:
    with counted_as(MemoryKind.WEIGHTS):
        count_as(MemoryKind.GATHERED, torch.zeros(2), np.zeros(2))


def _mlp() -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers), torch.rand(128, 64)


def _conv_net() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 10),
    ]
    return nn.Sequential(*layers), torch.rand(32, 3, 16, 16)


@pytest.mark.parametrize("build", [_mlp, _conv_net])
def test_peak_agrees_with_the_allocator_within_ten_percent(
    build: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    torch.manual_seed(0)
    module, x = build()
    module(x).sum().backward()  # first-use buffers of the kernels are not the subject
    module.zero_grad(set_to_none=True)

    with torch.profiler.profile(profile_memory=True) as profile:
        module(x).square().sum().backward()
    expected = _allocator_peak(profile)
    module.zero_grad(set_to_none=True)

    with MemoryMeter() as meter:
        meter.track(x, *module.parameters())
        meter.mark_baseline()
        module(x).square().sum().backward()
    measured = meter.peak_bytes - meter.baseline_bytes

    assert expected > 100 * KIB  # else the comparison says nothing
    assert abs(measured - expected) <= 0.1 * expected


def _allocator_peak(profile: torch.profiler.profile) -> int:
    """Return the allocator's highest level in bytes, scratch memory of single operators apart.

    Scratch is what one aten operator takes and gives back before it returns (the reordered copies
    of a convolution): no tensor ever names it, and the meter promises nothing about it.
    """
    events: list[tuple[int, int, int, int | None]] = []  # time, address, bytes, operator
    roots = profile.profiler.kineto_results.experimental_event_tree()
    _collect_allocations(roots, None, events)
    events.sort()
    opened: dict[int, int] = {}
    scratch: set[int] = set()
    for position, (_, address, num_bytes, operator) in enumerate(events):
        if num_bytes > 0:
            opened[address] = position
        elif address in opened:
            start = opened.pop(address)
            if operator is not None and events[start][3] == operator:
                scratch.update((start, position))
    level = peak = 0
    for position, event in enumerate(events):
        level += 0 if position in scratch else event[2]
        peak = max(peak, level)
    return peak


def _collect_allocations(
    nodes: list[Any], operator: int | None, events: list[tuple[int, int, int, int | None]]
) -> None:
    """Append all allocations and frees below `nodes`, each with its outermost aten operator."""
    for node in nodes:
        if node.tag == torch._C._profiler._EventType.Allocation:
            fields = node.extra_fields
            events.append((node.start_time_ns, fields.ptr, fields.alloc_size, operator))
        enclosing = node.id if operator is None and node.name.startswith("aten::") else operator
        _collect_allocations(node.children, enclosing, events)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_counts_by_the_allocator() -> None:
    with MemoryMeter("cuda") as meter:
        meter.mark_baseline()
        tensor = torch.zeros(1 << 18, device="cuda")
        assert meter.live_bytes - meter.baseline_bytes == tensor.nbytes
        del tensor
    assert meter.peak_bytes - meter.baseline_bytes == 4 << 18
