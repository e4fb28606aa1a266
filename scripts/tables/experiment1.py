"""Experiment 1: memory of CROWN on one wide zone, its neurons split over ranks."""

from __future__ import annotations

from typing import Any

from tables.ranks import Setting, split
from tables.table import MEGABYTE, Bars, Table, worst

# network, boxes
SMALL = ("zone:512x65536x1", "64")
PAPER = ("zone:4096x262144x1", "2048")
# ranks -> the paper's peak(1) / peak(T), what ours must reach
RATIOS = {1: (None, None), 2: (1.985, 1.985), 4: (None, 3.9)}


def run(setting: Setting) -> Table:
    """Measure one, two and four ranks; weights never exist in full on any of several."""
    network, batch = SMALL if setting.scale == "small" else PAPER
    reports = {
        ranks: split(setting, network, ranks, "--batch", batch, "--radius", "0.02")
        for ranks in RATIOS
    }
    return Table(
        name="exp1",
        title=f"Exp. 1: peak memory of CROWN on {network}, {batch} boxes",
        headings=(
            "ranks",
            "weights MB",
            "loading MB",
            "peak MB",
            "paper peak(1)/peak",
            "peak(1)/peak",
            "must reach",
            "largest Δ to one rank",
            "ranks agree",
        ),
        rows=tuple(_row(reports, ranks) for ranks in RATIOS),
        notes=(
            "Peaks are of the rank that has the highest. Δ is relative, |a - b| / max(1, |b|).",
            "Weights are made from a seed, each rank's part alone: loading holds no more than it.",
        ),
        plot=Bars("MB per rank", ("weights MB", "peak MB")),
    )


def _row(reports: dict[int, list[dict[str, Any]]], ranks: int) -> tuple[object, ...]:
    one, own = reports[1], reports[ranks]
    paper, target = RATIOS[ranks]
    return (
        str(ranks),
        worst([r["parameters"] for r in own]) / MEGABYTE,
        worst([r["loading_peak_bytes"] for r in own]) / MEGABYTE,
        peak(own) / MEGABYTE,
        paper,
        peak(one) / peak(own),
        target,
        gap(own, one),
        agreement(own),
    )


def peak(ranks: list[dict[str, Any]], method: str = "crown") -> int:
    """The highest peak of all ranks, bytes."""
    return worst([rank["methods"][method]["peak_bytes"] for rank in ranks])


def gap(ranks: list[dict[str, Any]], one: list[dict[str, Any]], method: str = "crown") -> float:
    """Largest relative difference of a bound on any rank to one rank's."""
    theirs = one[0]["methods"][method]["bounds"]
    return max(
        abs(a - b) / max(1.0, abs(b))
        for rank in ranks
        for a, b in zip(rank["methods"][method]["bounds"], theirs, strict=True)
    )


def agreement(ranks: list[dict[str, Any]], method: str = "crown") -> str:
    """Whether all ranks of the group have the same bits."""
    return "yes" if len({rank["methods"][method]["digest"] for rank in ranks}) == 1 else "NO"
