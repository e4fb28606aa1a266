"""Experiments 2 and 3: bounds of networks split by neuron against those of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.experiment1 import agreement, gap
from tables.ranks import Setting, split
from tables.table import Curves, Table

RANKS = (2, 3, 4)
METHODS = (("ibp", 1e-5), ("crown", 1e-5), ("alpha-crown", 1e-3))
"""With the largest relative difference to one rank that rounding may make."""

_WIDTHS = ("one rank, width", "exact, width", "ibp, width")


@dataclass(frozen=True)
class Case:
    """A network, its box, and what the paper states.

    Attributes:
        name: in the table.
        network: for `tp_worker`.
        flags: its box.
        depth: hidden layers, where all are fully connected.
        paper: largest difference of a lower bound between one device and two.
    """

    name: str
    network: str
    flags: tuple[str, ...]
    depth: int | None = None
    paper: float | None = None


def run(setting: Setting) -> Table:
    """CROWN: exact bounds inside zones, and the published interval bounds."""
    return Table(
        name="exp2",
        title="Exp. 2: CROWN with neurons split over two ranks, difference to one",
        headings=(
            "network",
            "hidden layers",
            "paper Δ lower",
            "ibp Δ lower",
            "exact Δ lower",
            "exact Δ relative",
            *_WIDTHS,
            "ibp never tighter",
            "ranks agree",
        ),
        rows=tuple(_crown_row(setting, case) for case in _cases(setting)),
        notes=(
            "Boxes: mnist_fc of prop_0_0.03; MLPs of radius 0.01 around a seeded input; resnet_2b "
            "of prop_0_eps_0.008.",
            "Width: upper minus lower bound of the output for which it is largest.",
            "The paper's differences depend on properties that are not at hand: sizes compare.",
        ),
        plot=Curves("largest upper - lower bound of an output", "hidden layers", _WIDTHS[::-1]),
    )


def run_alpha(setting: Setting) -> Table:
    """α-CROWN and more ranks, which the paper does not have beyond one zone."""
    return Table(
        name="exp3",
        title="Exp. 3: IBP, CROWN and α-CROWN with neurons split, relative difference to one rank",
        headings=(
            "network",
            "method",
            *(f"P = {ranks}" for ranks in RANKS),
            "at most",
            "within",
            "ranks agree",
        ),
        rows=tuple(
            row
            for case in _cases(setting)
            if not case.name.startswith("MLP") or case.depth == 10
            for row in _rank_rows(setting, case)
        ),
        notes=(
            "|a - b| / max(1, |b|), the largest of all bounds and ranks; boxes as in exp. 2.",
            "α-CROWN takes 20 steps, which amplify rounding.",
            "Ranks agree: those of a group have the same bits, for each P.",
        ),
    )


def _rank_rows(setting: Setting, case: Case) -> list[tuple[object, ...]]:
    """A row for each method."""
    flags = (*case.flags, "--methods", ",".join(method for method, _ in METHODS))
    one = split(setting, case.network, 1, *flags)
    found = [split(setting, case.network, ranks, *flags) for ranks in RANKS]
    rows: list[tuple[object, ...]] = []
    for method, limit in METHODS:
        gaps = [gap(ranks, one, method) for ranks in found]
        agree = {agreement(ranks, method) for ranks in found} == {"yes"}
        within = all(each <= limit for each in gaps)  # a NaN is not
        rows.append((case.name, method, *gaps, limit, _said(within), _said(agree)))
    return rows


def _crown_row(setting: Setting, case: Case) -> tuple[object, ...]:
    one = split(setting, case.network, 1, *case.flags)
    exact = split(setting, case.network, 2, *case.flags)
    looser = split(setting, case.network, 2, "--tp_intermediate", "ibp", *case.flags)
    theirs = _bounds(one)
    tighter = [a - b for a, b in zip(_bounds(looser), _bounds(exact), strict=True)]
    rounding = 1e-5 * max(1.0, *(abs(b) for b in theirs))
    return (
        case.name,
        case.depth,
        case.paper,
        max(abs(a - b) for a, b in zip(_bounds(looser), theirs, strict=True)),
        max(abs(a - b) for a, b in zip(_bounds(exact), theirs, strict=True)),
        gap(exact, one),
        *(_width(_bounds(ranks)) for ranks in (one, exact, looser)),
        _said(max(tighter) <= rounding),
        agreement(exact),
    )


def _bounds(ranks: list[dict[str, Any]]) -> list[float]:
    bounds: list[float] = ranks[0]["methods"]["crown"]["bounds"]
    return bounds


def _width(bounds: list[float]) -> float:
    """The largest upper - lower, of lower bounds of all outputs and then of their negatives."""
    half = len(bounds) // 2
    return max(-a - b for a, b in zip(bounds[:half], bounds[half:], strict=True))


def _said(holds: bool) -> str:
    return "yes" if holds else "NO"


def _cases(setting: Setting) -> list[Case]:
    """Networks that are at hand; a row that is missing in the table was not."""
    folder = setting.benchmarks / "vnncomp2022" / "mnist_fc"
    box = ("--vnnlib", str(folder / "vnnlib" / "prop_0_0.03.vnnlib.gz"))
    cases = [
        Case(
            f"mnist_fc 256x{depth}",
            str(folder / "onnx" / f"mnist-net_256x{depth}.onnx.gz"),
            box,
            depth,
            paper,
        )
        for depth, paper in ((2, 3e-8), (4, 2.5), (6, 792.0))
    ]
    cases += [
        Case(f"MLP 256x{depth}", f"mlp:256x{depth}", ("--radius", "0.01"), depth)
        for depth in (2, 4, 6, 8, 10)
    ]
    folder = setting.benchmarks / "vnncomp2021" / "cifar10_resnet"
    properties = folder / "vnnlib_properties_pgd_filtered" / "resnet2b_pgd_filtered"
    box = ("--vnnlib", str(properties / "prop_0_eps_0.008.vnnlib.gz"))
    cases.append(Case("resnet_2b", str(folder / "onnx" / "resnet_2b.onnx.gz"), box))
    there = [case for case in cases if case.network.startswith("mlp:") or _is_here(case)]
    return [case for case in there if setting.wanted(case.name)]


def _is_here(case: Case) -> bool:
    return Path(case.network).is_file()
