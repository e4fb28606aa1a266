"""Experiment 7: the vision transformer pgd_2_3_16 of VNN-COMP 2023."""

from __future__ import annotations

from tables.ranks import Setting
from tables.table import Table
from tables.verifications import BARS, HEADINGS, Case, compare


def run(setting: Setting) -> Table:
    """One property, ten rounds, with one rank and with two."""
    root = ("--root_path", str(setting.benchmarks / "vnncomp2023" / "vit"))
    cases = (Case("pgd_2_3_16", "vit_pgd", 78, 1_020.0, 1_020.0, root),)
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    return Table(
        name="exp7",
        title="Exp. 7: ViT pgd_2_3_16 under fsdp",
        headings=HEADINGS,
        rows=tuple(compare(setting, cases, worlds)),
        notes=("The property is one of VNN-COMP's; the authors' 7715 is not among its files.",),
        bars=BARS,
    )
