"""Experiments 2 and 3: bounds of networks split by neuron against those of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.experiment1 import agreement, gap
from tables.ranks import Setting, split
from tables.table import Bars, Table


@dataclass(frozen=True)
class Case:
    """A network, its box, and what the paper states.

    Attributes:
        name: in the table.
        network: for `tp_worker`.
        flags: its box.
        zones: pairs of layers that are split.
        paper: largest difference of a lower bound between one device and two.
    """

    name: str
    network: str
    flags: tuple[str, ...]
    zones: int
    paper: float | None


def run(setting: Setting) -> Table:
    """CROWN: exact bounds inside zones, and the published interval bounds."""
    return Table(
        name="exp2",
        title="Exp. 2: CROWN with neurons split over two ranks, difference to one",
        headings=(
            "network",
            "zones",
            "paper Δ lower",
            "ibp Δ lower",
            "exact Δ lower",
            "exact Δ relative",
            "one rank, worst lower",
            "ibp, worst lower",
            "ibp never tighter",
            "ranks agree",
        ),
        rows=tuple(_crown_row(setting, case) for case in _cases(setting)),
        notes=(
            "Boxes: mnist_fc of prop_0_0.03; MLPs of radius 0.01 around a seeded input.",
            "The paper's differences depend on properties that are not at hand: sizes compare.",
        ),
        bars=Bars("Δ of a lower bound to one rank", ("ibp Δ lower", "exact Δ lower")),
    )


def run_alpha(setting: Setting) -> Table:
    """α-CROWN and more ranks, which the paper does not have beyond one zone."""
    rows: list[tuple[object, ...]] = []
    worlds = (2, 3) if setting.scale == "small" else (2, 3, 4)
    for case in _cases(setting):
        flags = (*case.flags, "--methods", "ibp,crown,alpha-crown")
        one = split(setting, case.network, 1, *flags)
        for ranks in worlds:
            found = split(setting, case.network, ranks, *flags)
            rows += [
                (case.name, method, ranks, gap(found, one, method), limit, agreement(found, method))
                for method, limit in (("ibp", 1e-5), ("crown", 1e-5), ("alpha-crown", 1e-3))
            ]
    return Table(
        name="exp3",
        title="Exp. 3: IBP, CROWN and α-CROWN with neurons split, difference to one rank",
        headings=("network", "method", "ranks", "Δ relative", "at most", "ranks agree"),
        rows=tuple(rows),
        notes=("α-CROWN takes 20 steps, which amplify rounding.",),
    )


def _crown_row(setting: Setting, case: Case) -> tuple[object, ...]:
    one = split(setting, case.network, 1, *case.flags)
    exact = split(setting, case.network, 2, *case.flags)
    looser = split(setting, case.network, 2, "--tp_intermediate", "ibp", *case.flags)
    theirs = _bounds(one)
    tighter = [a - b for a, b in zip(_bounds(looser), theirs, strict=True)]
    rounding = 1e-5 * max(1.0, *(abs(b) for b in theirs))
    return (
        case.name,
        case.zones,
        case.paper,
        max(abs(change) for change in tighter),
        max(abs(a - b) for a, b in zip(_bounds(exact), theirs, strict=True)),
        gap(exact, one),
        min(theirs),
        min(_bounds(looser)),
        "yes" if max(tighter) <= rounding else "NO",
        agreement(exact),
    )


def _bounds(ranks: list[dict[str, Any]]) -> list[float]:
    bounds: list[float] = ranks[0]["methods"]["crown"]["bounds"]
    return bounds


def _cases(setting: Setting) -> list[Case]:
    """Networks that are at hand; a row that is missing in the table was not."""
    folder = setting.benchmarks / "vnncomp2022" / "mnist_fc"
    box = ("--vnnlib", str(folder / "vnnlib" / "prop_0_0.03.vnnlib.gz"))
    cases = [
        Case(name, str(folder / "onnx" / f"mnist-net_{name}.onnx.gz"), box, zones, paper)
        for name, zones, paper in (("256x2", 1, 3e-8), ("256x4", 2, 2.5), ("256x6", 3, 792.0))
    ]
    cases += [
        Case(f"MLP 256x{depth}", f"mlp:256x{depth}", ("--radius", "0.01"), (depth + 1) // 2, None)
        for depth in (2, 4, 6, 8, 10)
    ]
    there = [case for case in cases if case.network.startswith("mlp:") or _is_here(case)]
    return [case for case in there if setting.wanted(case.name)]


def _is_here(case: Case) -> bool:
    return Path(case.network).is_file()
