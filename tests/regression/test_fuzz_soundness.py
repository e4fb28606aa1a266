"""Random small networks, decided by the whole program and compared with exact optima.

A failure of the first test is a false answer. A failure of the others means that the comparison
would not have noticed one: each plants a bug and expects a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_cases import make_case
from fuzz_soundness import Judgement, Result, run
from torch import Tensor

from auto_LiRPA_patches.engine.subproblems import Subproblems
from auto_LiRPA_patches.operators.relu import Relu
from complete_verifier import reading
from complete_verifier.bab import activation
from complete_verifier.bab.context import BabContext
from complete_verifier.bab.domain_batch import DomainBatch
from complete_verifier.bab.tree_attack import TreeAttack
from complete_verifier.bounds.output_rows import OutputRows
from complete_verifier.specification import Clause, Specification

COUNT = 60
# With these and `blind`, no counterexample met by luck ends a run before its false proof.
BLIND = (
    *("--pgd_order", "skip", "--complete_verifier", "bab", "--max_domains", "1000"),
    *("--iteration", "20", "--lr_beta", "0.5", "--max_iterations", "20", "--timeout", "10"),
)
BAD = (Judgement.WRONG, Judgement.FAILED)


@pytest.fixture(autouse=True)
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The program runs in this process; what it sets is set back."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def test_no_answer_is_wrong() -> None:
    results = [run(make_case(seed)) for seed in range(COUNT)]
    assert not [str(result) for result in results if result.judgement in BAD]
    judged = [result for result in results if result.judgement is Judgement.RIGHT]
    # Limits are drawn at random, so some stay open; were most open, nothing would be tested.
    assert len(judged) >= COUNT // 2
    assert {"sat", "unsat"} <= {result.verdict for result in judged}


# -- planted bugs ------------------------------------------------------------------------------


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No counterexample is looked for in the tree."""
    monkeypatch.setattr(BabContext, "try_points", lambda *_: None)
    monkeypatch.setattr(TreeAttack, "look", lambda *_, **__: None)


def first_wrong(*likely: int, flags: tuple[str, ...] = ()) -> Result | None:
    """The first wrong answer, among the cases that once showed the bug and then among others."""
    for seed in (*likely, *range(COUNT // 2)):
        case = make_case(seed)
        result = run(replace(case, flags=(*case.flags, *flags)))
        if result.judgement is Judgement.WRONG:
            return result
    return None


@pytest.mark.usefixtures("blind")
def test_a_lost_subproblem_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    split = activation._Tree._split

    def loses_half(tree: activation._Tree, *arguments: Any) -> DomainBatch:
        children = split(tree, *arguments)
        return children.select(torch.arange(children.count // 2))

    monkeypatch.setattr(activation._Tree, "_split", loses_half)
    wrong = first_wrong(49, 62, flags=BLIND)
    assert wrong is not None and wrong.verdict == "unsat"


@pytest.mark.usefixtures("blind")
def test_a_multiplier_with_the_wrong_sign_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    against = vars(Subproblems)["against"].func

    def negated(problem: Subproblems) -> dict[int, Tensor]:
        return {index: -sign for index, sign in against(problem).items()}

    monkeypatch.setattr(Subproblems, "against", property(negated))
    wrong = first_wrong(62, flags=BLIND)
    assert wrong is not None and wrong.verdict == "unsat"


def test_an_upper_line_that_is_too_low_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    relax = Relu.relax

    def lowered(relu: Relu, *arguments: Any) -> Any:
        found = relax(relu, *arguments)
        return replace(found, intercept=0.8 * found.intercept)

    monkeypatch.setattr(Relu, "relax", lowered)
    wrong = first_wrong(102, 38)
    assert wrong is not None and wrong.verdict == "unsat"


def test_one_excluded_clause_taken_for_all_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    excluded = OutputRows.excluded

    def any_is_enough(rows: OutputRows, *arguments: Any) -> np.ndarray:
        found = excluded(rows, *arguments)
        return np.full_like(found, found.any())

    monkeypatch.setattr(OutputRows, "excluded", any_is_enough)
    wrong = first_wrong(8, 43, 46)
    assert wrong is not None and wrong.verdict == "unsat"


def test_a_conjunction_read_as_a_disjunction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading.read_vnnlib

    def row_by_row(path: Path) -> Specification:
        stated = read(path)
        regions = (
            replace(region, clauses=tuple(row for clause in region.clauses for row in rows(clause)))
            for region in stated.regions
        )
        return replace(stated, regions=tuple(regions))

    def rows(clause: Clause) -> list[Clause]:
        pairs = zip(clause.coefficients, clause.rhs, strict=True)
        return [Clause(row[None], rhs[None]) for row, rhs in pairs]

    monkeypatch.setattr(reading, "read_vnnlib", row_by_row)
    wrong = first_wrong(5, 11, 1)
    assert wrong is not None and wrong.verdict == "sat"
