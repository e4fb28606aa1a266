"""Whole verifications of a config of exp_configs/fsdp on one rank and on several, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tables.ranks import RunFailedError, Setting, verify
from tables.table import MEGABYTE, Bars, saving, worst


@dataclass(frozen=True)
class Case:
    """One row of a table.

    Attributes:
        name: of the row.
        config: of exp_configs/fsdp, without suffix.
        paper_subproblems, paper_one, paper_two: published counts and peaks (MB, one GPU and per
            rank of two); None where none are.
        worlds: numbers of ranks; the first one, a single rank, is what the others are held to.
        flags: for the verifier, besides those of the config: what is asked.
        shards: flags that say what several ranks share.
    """

    name: str
    config: str
    paper_subproblems: int | None
    paper_one: float | None
    paper_two: float | None
    worlds: tuple[int, ...]
    flags: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()


HEADINGS = (
    "instance",
    "P",
    "paper subproblems",
    "subproblems",
    "paper peak MB",
    "peak MB",
    "saved %",
    "weights MB",
    "gathered MB",
    "A MB",
    "α, β MB",
    "other MB",
    "verdict",
    "same bounds",
    "seconds",
    "time, P = 1 is 1",
)
_ROUNDING = 1e-5  # what shard_specs may change without tiles, after 20 iterations of α-CROWN
BARS = Bars("peak, MB per rank", ("paper peak MB", "peak MB"))


# Subproblems are shared, and the rows of the bounds that come before them.
DOMAINS = ("--fsdp", "false", "--shard_specs", "true", "--shard_domains", "true")


def equal_work(setting: Setting, worlds: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Records of the published equal work, by number of ranks that share its subproblems.

    That is mnist-net_256x6, ten synchronous rounds of 512 subproblems.

    Raises:
        RunFailedError: the work was not the same on every number of ranks.
    """
    root = setting.root_of(2022, "mnist_fc")
    records = {n: verify(setting, "mnist_fc_512", n, *root, *DOMAINS) for n in worlds}
    counts = {ranks: record["bab"]["domains_visited"] for ranks, record in records.items()}
    if len(set(counts.values())) > 1:
        raise RunFailedError(f"subproblems visited, by number of ranks: {counts}; expected one")
    return records


def compare(setting: Setting, cases: Sequence[Case]) -> list[tuple[Any, ...]]:
    """A row per case and number of ranks.

    One rank has nothing to share, so cases that ask the same question have one such run in common.
    """
    rows: list[tuple[Any, ...]] = []
    alone: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in cases:
        if not setting.wanted(case.name):
            continue
        question = (case.config, *case.flags)
        if question not in alone:
            alone[question] = verify(setting, case.config, 1, *case.flags)
        for ranks in case.worlds:
            shared = (*case.flags, *case.shards)
            record = alone[question] if ranks == 1 else verify(setting, case.config, ranks, *shared)
            rows.append(_row(case, ranks, record, alone[question]))
    return rows


def _row(
    case: Case, ranks: int, record: dict[str, Any], reference: dict[str, Any]
) -> tuple[Any, ...]:
    peak, kinds = highest_peak(record)
    published = {1: case.paper_one, 2: case.paper_two}.get(ranks)
    seconds = record["seconds"]["total"]
    return (
        f"{case.name}, P={ranks}",
        ranks,
        case.paper_subproblems if ranks <= 2 else None,
        record["bab"]["domains_visited"],
        published,
        peak / MEGABYTE,
        saving(peak, worst(reference["memory"]["peak_bytes"])),
        *(
            kinds[kind] / MEGABYTE
            for kind in ("weights", "gathered_weights", "a_matrices", "alpha_beta", "other")
        ),
        record["verdict"],
        agreement(record, reference),
        seconds,
        seconds / reference["seconds"]["total"],
    )


def highest_peak(record: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """The peak of the rank that has the highest, bytes; and what it consists of, by kind."""
    memory = record["memory"]
    peak = worst(memory["peak_bytes"])
    return peak, memory["peak_by_kind"][memory["peak_bytes"].index(peak)]


def agreement(record: dict[str, Any], reference: dict[str, Any]) -> str:
    """How far two records agree: `same_answer` is a yes, other sums of the same terms are told."""
    if same_answer(record, reference):
        return "yes"
    if any(record[key] != reference[key] for key in ("verdict", "bab")):
        return "NO"
    pairs = [
        pair
        for method, own in record["bounds"].items()
        for pair in zip(own, reference["bounds"][method], strict=True)
    ]
    largest = max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)
    return f"within {largest:.1e}" if largest <= _ROUNDING else "NO"


def same_answer(record: dict[str, Any], reference: dict[str, Any]) -> bool:
    """Whether verdict, all bounds and branch and bound's counts are equal, bit for bit."""
    return all(record[key] == reference[key] for key in ("verdict", "bounds", "bab"))
