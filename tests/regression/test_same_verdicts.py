"""The comparison of verdicts between numbers of ranks sees what it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from same_verdicts import CATEGORIES, faults, main

RANKS = (1, 2, 3)


def records(*verdicts: str | None) -> list[dict[str, object] | None]:
    files = {"onnx": "n.onnx", "vnnlib": "p.vnnlib"}
    return [None if own is None else {"verdict": own, **files} for own in verdicts]


@pytest.mark.parametrize(
    "verdicts",
    [
        ("unsat", "unsat", "unsat"),
        ("timeout", "unsat", "unknown"),
        ("unknown", "timeout", "unknown"),
    ],
)
def test_equal_answers_and_those_that_more_ranks_give_are_no_fault(
    verdicts: tuple[str | None, ...],
) -> None:
    assert list(faults(records(*verdicts), RANKS)) == []


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (("unsat", "unsat", "timeout"), "LOST on 3 ranks"),
        (("unsat", None, "error"), "LOST on 2, 3 ranks"),
        (("unknown", None, "error"), "NO VERDICT of 2, 3 ranks"),
        (("error", "error", "error"), "NO VERDICT of 1, 2, 3 ranks"),
        ((None, "unsat", "sat"), "OPPOSITE"),
        (("unsat", "sat", "unsat"), "OPPOSITE"),
        (("timeout", "unsat", "sat"), "OPPOSITE"),
        (("sat", "sat", "sat"), "sat of 2 ranks DOES NOT REPLAY"),
    ],
)
def test_a_fault_is_named(verdicts: tuple[str | None, ...], word: str) -> None:
    assert any(word in own for own in faults(records(*verdicts), RANKS))


def test_sixty_instances_are_asked_for_and_fifteen_with_neurons_split() -> None:
    counts = {category.name: len(category.places) or category.count for category in CATEGORIES}
    assert counts.pop("mnist_fc_tp") == 15
    assert sum(counts.values()) == 60


def test_nothing_to_compare_is_not_agreement(tmp_path: Path) -> None:
    assert main([str(tmp_path), str(tmp_path / "results"), "--only", "acasxu"]) == 1
