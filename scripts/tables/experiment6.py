"""Experiment 6: branch and bound with equal work, with sharded weights alone and with subproblems
spread over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from bench_bab import arguments_of, open_case

from auto_LiRPA_patches.errors import VerifierError
from auto_LiRPA_patches.sharding.memory_kinds import MemoryKind
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from complete_verifier.bab.bounding import Bounding
from complete_verifier.config.bab import BabConfig
from tables.ranks import CONFIGS, Setting
from tables.table import MEGABYTE, Table
from tables.verifications import BARS, DOMAINS, HEADINGS, Case, compare

_PEAK, _RANKS = HEADINGS.index("peak MB"), HEADINGS.index("P")
_ALLOWED = 1.1
# They would make the small scale longer than an experiment may be; --only asks for them.
_LONG = ("256x6, batch 4096", "wide MLP", "wide MLP, no prefetch", "wide MLP, all shards")
# As in exp_configs/fsdp/mnist_fc_*.yaml: steps at the root and on each batch.
_EFFORT = ("--synchronous", "--rounds", "1", "--root_iterations", "20", "--iterations", "10")


def run(setting: Setting) -> Table:
    """mnist-net_256x6 at two batch sizes, and the wide MLP."""
    root = setting.root_of(2022, "mnist_fc")
    folder = setting.benchmarks / "vnncomp2022" / "mnist_fc"
    cases = _cases(root, (1, 2) if setting.scale == "small" else (1, 2, 4))
    if setting.scale == "small" and not setting.only:
        cases = [case for case in cases if case.name not in _LONG]
    rows = compare(setting, cases)
    shared = [case for case in cases if case.shards == DOMAINS and setting.wanted(case.name)]
    notes = []
    for case in shared:
        found = [row for row in rows if row[0].startswith(f"{case.name}, P=")]
        notes.append(against_the_bar(case.name, found, working_set(folder, _tile_of(case))))
    return Table(
        name="exp6",
        title="Exp. 6: branch and bound, equal work",
        headings=HEADINGS,
        rows=tuple(rows),
        notes=(
            "fsdp shares weights: every rank works on all subproblems, so little is saved on small "
            "networks. Rows called domains share subproblems and the root's rows (shard_domains, "
            "shard_specs) and hold the weights whole; all shards is fsdp without prefetch, "
            "shard_specs and shard_domains.",
            "F is one copy of the weights and one tile's working set while branching; peaks are of "
            "the whole run.",
            *notes,
            "Counts depend on heuristics: they must agree between numbers of ranks, not with the "
            "paper's.",
            "The wide MLP (4096x4) is a stand-in with drawn weights.",
        ),
        plot=BARS,
    )


def _cases(root: tuple[str, ...], worlds: tuple[int, ...]) -> list[Case]:
    """Every row; `root` are the flags that name the folder of mnist_fc."""
    small = ("mnist_fc_512", 6_236, 211.7, 215.7)
    large = ("mnist_fc_4096", 49_888, 1_537.3, 1_541.4)
    wide = ("wide_mlp", None, 4_199.0, 4_748.0)
    off = ("--fsdp", "true", "--fsdp_prefetch", "false")
    all_shards = (*off, "--shard_specs", "true", "--shard_domains", "true")
    return [
        Case("256x6, batch 512", *small, worlds, root),
        Case("256x6, batch 4096", *large, worlds, root),
        Case("256x6, batch 512, domains", *small, (1, 2, 3, 4), root, DOMAINS),
        Case("256x6, batch 4096, domains", *large, (1, 2, 4), root, DOMAINS),
        Case("wide MLP, no prefetch", *wide, worlds, (), off),
        Case("wide MLP, all shards", *wide, worlds, (), all_shards),
        Case("wide MLP", *wide, worlds),
    ]


def against_the_bar(name: str, rows: Sequence[tuple[Any, ...]], fixed: float) -> str:
    """What the peaks say of ``peak(P) - F <= 1.1 (peak(1) - F) / P``.

    Args:
        rows: of one case, one rank first.
        fixed: F in MB, what does not shrink with P: weights and one micro-batch's working set.
    """
    alone = float(rows[0][_PEAK]) - fixed
    parts = []
    for row in rows[1:]:
        ratio = (float(row[_PEAK]) - fixed) * row[_RANKS] / alone
        says = "" if ratio <= _ALLOWED else " (MISSED)"
        parts.append(
            f"P = {row[_RANKS]}: {ratio:.3f}{says}, "
            f"peak(1) / peak(P) = {float(rows[0][_PEAK]) / float(row[_PEAK]):.2f}"
        )
    return (
        f"{name}: F = {fixed:.1f} MB; P (peak(P) - F) / (peak(1) - F), at most {_ALLOWED}: "
        f"{'; '.join(parts)}."
    )


def working_set(folder: Path, tile: int) -> float:
    """F in MB: weights and the peak of one round whose children fill one tile, on one rank.

    The root's bounds are not part of it; they are done with before branching begins.

    Args:
        folder: of mnist_fc.
        tile: its subproblems.
    """
    network = folder / "onnx" / "mnist-net_256x6.onnx"
    spec = folder / "vnnlib" / "prop_7_0.05.vnnlib"
    sizes = ("--tile_size", str(tile), "--batch", str(tile // 2))
    case = open_case(arguments_of().parse_args([str(network), str(spec), *_EFFORT, *sizes]))
    if case is None:
        raise VerifierError(f"{spec}: nothing is left to branch on")
    # So small a round would be cut finer, that several ranks get a share; a full batch is not.
    with patch.object(Bounding, "fit_tiles"), MemoryMeter() as meter:
        meter.track(*case.network.graph.weights.held(), kind=MemoryKind.WEIGHTS)
        case.run(1)
    return meter.peak_bytes / MEGABYTE


def _tile_of(case: Case) -> int:
    """Subproblems that the case's config bounds at a time."""
    text = (CONFIGS / f"{case.config}.yaml").read_text(encoding="utf-8")
    return int(yaml.safe_load(text)["bab"].get("tile_size", BabConfig().tile_size))
