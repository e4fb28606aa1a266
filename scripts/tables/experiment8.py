"""Experiment 8: residual networks with 100 outputs."""

from __future__ import annotations

from tables.ranks import Setting
from tables.table import Table
from tables.verifications import BARS, HEADINGS, Case, compare


def run(setting: Setting) -> Table:
    """ResNet-medium branches for five rounds, ResNet-large is proven before branching."""
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    rows = ("--shard_specs", "true")
    medium = ("resnet_medium", 130, 960.0, 930.0)
    large = ("resnet_large", 0, 4_610.6, 4_641.5)
    cases = (
        Case("ResNet-medium (stand-in)", *medium, worlds),
        Case("ResNet-large (stand-in)", *large, worlds),
        Case("ResNet-medium (stand-in), rows", *medium, (1, 2, 4), shards=rows),
        Case("ResNet-large (stand-in), rows", *large, (1, 2, 4), shards=rows),
    )
    return Table(
        name="exp8",
        title="Exp. 8: ResNets with 100 outputs under fsdp, and with rows shared too",
        headings=HEADINGS,
        rows=tuple(compare(setting, cases)),
        notes=(
            "Rows are those of shard_specs, P = 4 too. ResNet-medium is bounded in tiles, so its "
            "bounds have the bits of one rank; ResNet-large agrees up to rounding.",
            "Both networks are stand-ins with drawn weights (scripts/make_models.py); give the "
            "originals' paths in exp_configs/fsdp to measure those.",
        ),
        plot=BARS,
    )
