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
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    return Table(
        name="exp8",
        title="Exp. 8: ResNets with 100 outputs under fsdp",
        headings=HEADINGS,
        rows=tuple(compare(setting, cases, worlds)),
        notes=(
            "Both networks are stand-ins with drawn weights (scripts/make_models.py); give the "
            "originals' paths in exp_configs/fsdp to measure those.",
        ),
        bars=BARS,
    )
