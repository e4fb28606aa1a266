"""What is guessed of the next weights: announcements, repetitions, and where neither speaks.

A failure means weights fetched in vain, or not fetched ahead; never a wrong weight.
"""

from __future__ import annotations

from collections.abc import Iterable

from auto_LiRPA_patches.sharding.gather_order import GatherOrder

PASS = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def noted(indices: Iterable[int]) -> GatherOrder:
    order = GatherOrder()
    for index in indices:
        order.note(index)
    return order


def wrong_guesses(order: GatherOrder, indices: Iterable[int]) -> int:
    """How often the first guess was another weight than the one then asked for."""
    wrong = 0
    for index in indices:
        guess = order.upcoming(1)
        wrong += bool(guess) and guess != [index]
        order.note(index)
    return wrong


def test_nothing_is_guessed_of_what_never_happened() -> None:
    assert noted([]).upcoming(3) == []
    assert noted(PASS).upcoming(3) == []
    assert noted([4, 4, 4]).upcoming(3) == []


def test_an_announced_pass_is_guessed_to_its_end() -> None:
    order = GatherOrder()
    order.expect(PASS[:3])
    assert order.upcoming(2) == [9, 8]
    order.note(9)
    assert order.upcoming(5) == [8, 7]
    order.note(8)
    order.note(7)
    assert order.upcoming(1) == []


def test_an_operator_may_swap_and_repeat_what_was_announced() -> None:
    order = GatherOrder()
    order.expect([1, 2, 3, 7])
    for index in (2, 1, 3, 1, 2):
        order.note(index)
    assert order.upcoming(2) == [7]


def test_an_announcement_that_does_not_come_true_is_forgotten() -> None:
    order = GatherOrder()
    order.expect([1, 2, 3])
    for index in range(50, 59):
        order.note(index)
    assert order.upcoming(1) == []


def test_a_repetition_is_followed_without_a_miss_whatever_its_inner_repetitions() -> None:
    iteration = [*PASS, *PASS[::-1], *PASS, *PASS, *PASS[::-1], 5, 6]
    order = noted(iteration * 2)
    assert wrong_guesses(order, iteration * 3) == 0
    assert order.upcoming(4) == iteration[:4]


def test_a_short_period_is_continued_as_far_as_asked() -> None:
    order = noted([1, 2] * 8)
    assert order.upcoming(5) == [1, 2, 1, 2, 1]


def test_what_follows_an_announcement_is_taken_from_the_repetition_it_agrees_with() -> None:
    order = noted(PASS * 3)
    order.expect(PASS[:2])
    assert order.upcoming(4) == PASS[:4]
    order.expect([3, 9])
    assert order.upcoming(4) == [3, 9]


def test_memory_of_the_past_is_bounded() -> None:
    order = noted(PASS * 4000)
    assert len(order._history) <= 1 << 15 and len(order._places) <= 2 << 15
