"""Experiment 6: branch and bound with equal work; here with sharded weights alone."""

from __future__ import annotations

from tables.ranks import Setting
from tables.table import Table
from tables.verifications import BARS, HEADINGS, Case, compare


def run(setting: Setting) -> Table:
    """mnist-net_256x6 at two batch sizes, and the wide MLP with and without prefetch."""
    root = ("--root_path", str(setting.benchmarks / "vnncomp2022" / "mnist_fc"))
    fsdp = ("--fsdp", "true")
    off = (*fsdp, "--fsdp_prefetch", "false")
    cases = (
        Case("256x6, batch 512", "mnist_fc_512", 6_236, 211.7, 215.7, (*root, *fsdp)),
        Case("256x6, batch 4096", "mnist_fc_4096", 49_888, 1_537.3, 1_541.4, (*root, *fsdp)),
        Case("wide MLP", "wide_mlp", None, 4_199.0, 4_748.0, fsdp),
        Case("wide MLP, no prefetch", "wide_mlp", None, 4_199.0, 4_748.0, off),
    )
    worlds = (1, 2) if setting.scale == "small" else (1, 2, 4)
    return Table(
        name="exp6",
        title="Exp. 6: branch and bound under fsdp, equal work",
        headings=HEADINGS,
        rows=tuple(compare(setting, cases, worlds)),
        notes=(
            "Weights are shared, subproblems are not: every rank works on all of them, so little "
            "is saved on small networks.",
            "Counts depend on heuristics: they must agree between numbers of ranks, not with the "
            "paper's.",
            "The wide MLP (4096x4) is a stand-in with drawn weights.",
        ),
        bars=BARS,
    )
