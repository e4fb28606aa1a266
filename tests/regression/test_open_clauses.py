"""What bounds exclude before the attack is not attacked; what they leave open is.

A failure means effort spent on what is proven, or, worse, a clause that nobody attacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auto_LiRPA_patches.errors import NonFiniteBoundError
from complete_verifier import instance
from complete_verifier.bounds.incomplete import RegionVerification
from complete_verifier.specification import Specification
from tests.regression.conftest import Verify
from tests.regression.user_runs import save_mlp, vnnlib

LAYERS = (
    (np.array([[1.0], [-1.0]]), np.zeros(2)),
    (np.array([[1.0, 1.0], [2.0, 0.0]]), np.zeros(2)),  # |x| and 2 max(x, 0)
)
# Over [-1, 1] bounds see that Y_0 > -5; y_0 <= 0.25 is violated around zero.
EXCLUDED, OPEN = "(and (<= Y_0 -5.0))", "(and (<= Y_0 0.25) (<= Y_1 0.25))"


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> list[Specification]:
    """The specifications that were attacked."""
    seen: list[Specification] = []
    attack = instance.attack_specification

    def watched(forward: Any, specification: Specification, *rest: Any, **named: Any) -> Any:
        seen.append(specification)
        return attack(forward, specification, *rest, **named)

    monkeypatch.setattr(instance, "attack_specification", watched)
    return seen


def violated(verify: Verify, folder: Path, *clauses: str) -> None:
    onnx = save_mlp(folder / "net.onnx", *LAYERS)
    text = vnnlib([-1.0], [1.0], 2, f"(or {' '.join(clauses)})")
    run = verify(onnx, text, "--pgd_order", "before", "--complete_verifier", "skip")
    assert run.verdict == "sat"


@pytest.mark.parametrize("clauses", [(EXCLUDED, OPEN), (OPEN, EXCLUDED)])
def test_a_clause_that_bounds_exclude_is_not_attacked(
    verify: Verify, tmp_path: Path, attacked: list[Specification], clauses: tuple[str, ...]
) -> None:
    violated(verify, tmp_path, *clauses)
    (region,) = attacked[0].regions
    assert [clause.num_rows for clause in region.clauses] == [2]


def test_clauses_whose_bounds_overflow_are_all_attacked(
    verify: Verify,
    tmp_path: Path,
    attacked: list[Specification],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def overflows(own: RegionVerification) -> None:
        raise NonFiniteBoundError("planted: the bounds overflowed")

    monkeypatch.setattr(RegionVerification, "first", overflows)
    violated(verify, tmp_path, EXCLUDED, OPEN)
    (region,) = attacked[0].regions
    assert [clause.num_rows for clause in region.clauses] == [1, 2]
