"""Experiment 8: residual networks with 100 outputs."""

from __future__ import annotations

from tables.ranks import Setting
from tables.table import Table
from tables.verifications import BARS, HEADINGS, Case, compare


def run(setting: Setting) -> Table:
    """ResNet-medium branches for five rounds, ResNet-large is proven before branching."""
    cases = (
        Case("ResNet-medium (stand-in)", "resnet_medium", 130, 960.0, 930.0),
        Case("ResNet-large (stand-in)", "resnet_large", 0, 4_610.6, 4_641.5),
    )
    rows = ("--shard_specs", "true")
    shared = (
        Case("ResNet-medium (stand-in), rows", "resnet_medium", 130, 960.0, 930.0, rows),
        Case("ResNet-large (stand-in), rows", "resnet_large", 0, 4_610.6, 4_641.5, rows),
    )
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    return Table(
        name="exp8",
        title="Exp. 8: ResNets with 100 outputs under fsdp, and with rows shared too",
        headings=HEADINGS,
        rows=(*compare(setting, cases, worlds), *compare(setting, shared, (1, 2, 4))),
        notes=(
            "Rows are those of shard_specs, P = 4 too. ResNet-medium is bounded in tiles, so its "
            "bounds have the bits of one rank; ResNet-large agrees up to rounding.",
            "Both networks are stand-ins with drawn weights (scripts/make_models.py); give the "
            "originals' paths in exp_configs/fsdp to measure those.",
        ),
        plot=BARS,
    )
