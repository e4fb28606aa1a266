"""How memory and speed change with the number of ranks: one verification on 1, 2, 4 and 8 of them.

`memory` splits the peak of α-CROWN on the stand-in of ResNet-large into what it consists of, with
weights and rows shared; `rate` counts the subproblems per second of mnist-net_256x6's branch and
bound, with subproblems shared, the work being the same on any number of ranks.
"""

from __future__ import annotations

from typing import Any

from tables.ranks import Setting, verify
from tables.table import MEGABYTE, Bars, Table
from tables.verifications import equal_work, highest_peak

WORLDS = (1, 2, 4, 8)
_KINDS = {
    "weights": "weights MB",
    "gathered_weights": "gathered MB",
    "a_matrices": "A MB",
    "alpha_beta": "α, β MB",
    "other": "other MB",
}
_ROWS = ("--shard_specs", "true", "--fsdp_prefetch", "false")


def memory(setting: Setting) -> Table:
    """Peak bytes per rank by kind, with fsdp and shard_specs."""
    rows = []
    for ranks in _worlds(setting):
        record = verify(setting, "resnet_large", ranks, *_ROWS)
        peak, kinds = highest_peak(record)
        parts = [kinds[kind] / MEGABYTE for kind in _KINDS]
        rows.append((f"P={ranks}", peak / MEGABYTE, *parts, record["verdict"]))
    parts_of_peak = tuple(_KINDS.values())
    return Table(
        name="memory",
        title="Peak of each rank: α-CROWN of ResNet-large (stand-in), fsdp and shard_specs",
        headings=("ranks", "peak MB", *parts_of_peak, "verdict"),
        rows=tuple(rows),
        notes=("Of the rank that has the highest peak.",),
        plot=Bars("MB per rank", parts_of_peak, stacked=True),
    )


def rate(setting: Setting) -> Table:
    """Subproblems per second while branching, with shard_domains.

    Raises:
        RunFailedError: the work was not the same on every number of ranks.
    """
    records = equal_work(setting, _worlds(setting))
    first = _per_second(next(iter(records.values())))
    rows = [
        (
            f"P={ranks}",
            record["bab"]["domains_visited"],
            _per_second(record),
            _per_second(record) / first,
        )
        for ranks, record in records.items()
    ]
    return Table(
        name="rate",
        title="Branch and bound of mnist-net_256x6, batch 512, ten rounds, subproblems shared",
        headings=("ranks", "subproblems", "subproblems per second", "times the first"),
        rows=tuple(rows),
        notes=("The rate can rise only while every rank has a core of its own.",),
        plot=Bars("subproblems per second", ("subproblems per second",)),
    )


def _per_second(record: dict[str, Any]) -> float:
    return float(record["bab"]["domains_visited"] / record["seconds"]["bab"])


def _worlds(setting: Setting) -> list[int]:
    return [ranks for ranks in WORLDS if setting.wanted(f"P={ranks}")]
