"""Experiment 7: the vision transformer pgd_2_3_16 of VNN-COMP 2023."""

from __future__ import annotations

from tables.ranks import Setting
from tables.table import Table
from tables.verifications import BARS, HEADINGS, Case, compare


def run(setting: Setting) -> Table:
    """One property, ten rounds, with weights shared, and with rows and subproblems too."""
    root = setting.root_of(2023, "vit")
    shards = ("--shard_specs", "true", "--shard_domains", "true")
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    cases = (
        Case("pgd_2_3_16", "vit_pgd", 78, 1_020.0, 1_020.0, worlds, root),
        Case("pgd_2_3_16, all shards", "vit_pgd", 78, 1_020.0, 1_020.0, worlds, root, shards),
    )
    return Table(
        name="exp7",
        title="Exp. 7: ViT pgd_2_3_16 under fsdp, and with all shards",
        headings=HEADINGS,
        rows=tuple(compare(setting, cases)),
        notes=(
            "All shards is fsdp, shard_specs and shard_domains.",
            "The property is one of VNN-COMP's; the authors' 7715 is not among its files.",
        ),
        plot=BARS,
    )
