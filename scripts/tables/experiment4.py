"""Experiment 4: bounds on several ranks under fsdp against those of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables.ranks import Setting, bound
from tables.table import Table


@dataclass(frozen=True)
class Case:
    """One network, the radius of its box, and how it is bounded."""

    name: str
    network: str
    radius: float
    methods: str = "ibp,crown,alpha-crown"


def run(setting: Setting) -> Table:
    """Compare every bound, inner ones included, bit for bit."""
    worlds = (2, 3) if setting.scale == "small" else (2, 3, 4)
    rows: list[tuple[object, ...]] = []
    for case in _cases(setting):
        flags = ("--radius", str(case.radius), "--methods", case.methods)
        one = bound(setting, case.network, 1, *flags)["ranks"][0]["methods"]
        for ranks in worlds:
            every = bound(setting, case.network, ranks, "--fsdp", *flags)["ranks"]
            for method, reference in one.items():
                found = [rank["methods"][method] for rank in every]
                paper = None if ranks > 2 or method == "alpha-crown" else 0.0
                rows.append((case.name, method, ranks, paper, *_compare(reference, found)))
    return Table(
        name="exp4",
        title="Exp. 4: bounds under fsdp against one rank",
        headings=("network", "method", "P", "paper Δ", "measured Δ", "same bits", "bounds"),
        rows=tuple(rows),
        notes=(
            "Δ is the largest difference of an output's lower or upper bound; the bits compared "
            "are those of all bounds, inner ones included, on every rank.",
        ),
    )


def _compare(one: dict[str, Any], ranks: list[dict[str, Any]]) -> tuple[float, str, int]:
    """Largest difference, whether all digests agree, and how many bounds are listed."""
    pairs = [(a, b) for found in ranks for a, b in zip(one["bounds"], found["bounds"], strict=True)]
    largest = max((abs(a - b) for a, b in pairs if a != b), default=0.0)
    same = all(found["digest"] == one["digest"] for found in ranks)
    return largest, "yes" if same else "NO", len(one["bounds"])


def _cases(setting: Setting) -> list[Case]:
    """Networks that are at hand; a row that is missing in the table was not."""
    folder = setting.benchmarks
    fc = folder / "vnncomp2022" / "mnist_fc" / "onnx"
    res = folder / "vnncomp2021" / "cifar10_resnet" / "onnx"
    vit = folder / "vnncomp2023" / "vit" / "onnx"
    cases = [
        Case("MLP 257x3", "mlp:257x3", 0.02),
        Case("MLP 1024x4", "mlp:1024x4", 0.02, "ibp,crown"),
    ]
    cases += [
        Case(f"mnist_fc {name}", str(fc / f"mnist-net_{name}.onnx.gz"), 0.004)
        for name in ("256x2", "256x4", "256x6")
    ]
    cases.append(Case("resnet_2b", str(res / "resnet_2b.onnx.gz"), 0.002))
    if setting.scale == "paper":
        cases.append(Case("resnet_4b", str(res / "resnet_4b.onnx.gz"), 0.001))
    cases.append(Case("vit pgd_2_3_16", str(vit / "pgd_2_3_16.onnx.gz"), 0.001, "ibp,crown"))
    there = [c for c in cases if c.network.startswith("mlp:") or Path(c.network).is_file()]
    return [case for case in there if setting.wanted(case.name)]
