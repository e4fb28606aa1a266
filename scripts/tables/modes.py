"""Peak memory and time of each parallel mode by itself on 1, 2 and 4 ranks, for the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tables.ranks import Setting, bound, split
from tables.table import MEGABYTE, Bars, Table
from tables.verifications import equal_work, highest_peak

NETWORK = "mlp:2048x4"
WORLDS = (1, 2, 4)
_CHUNK = ("--chunk", "512")
_BOUNDED: Mapping[str, tuple[str, ...]] = {
    "fsdp": ("--fsdp",),
    "fsdp, no prefetch": ("--fsdp", "--no_prefetch"),
    "shard_specs": ("--shard_specs",),
    "fsdp + shard_specs": ("--fsdp", "--shard_specs", "--no_prefetch"),
}


def run(setting: Setting) -> Table:
    """Bounds of a wide MLP by every mode that serves them; branch and bound by shard_domains."""
    rows: list[tuple[object, ...]] = []
    for mode, flags in _BOUNDED.items():
        if setting.wanted(mode):
            rows += [
                _bounded(mode, ranks, bound(setting, NETWORK, ranks, *flags, *_CHUNK))
                for ranks in WORLDS
            ]
    if setting.wanted("tp"):
        rows += [
            _bounded("tp", ranks, {"ranks": split(setting, NETWORK, ranks, *_CHUNK)})
            for ranks in WORLDS
        ]
    if setting.wanted("shard_domains"):
        rows += _domains(setting)
    return Table(
        name="modes",
        title="Peak memory and time of each parallel mode",
        headings=("mode", "work", "P", "peak MB per rank", "of it weights", "CPU s", "wall s"),
        rows=tuple(rows),
        notes=(
            f"{NETWORK}: CROWN of a fully connected network, 512 rows at a time. 256x6: ten "
            "synchronous rounds of 512 subproblems of mnist-net_256x6; the rows of the bounds that "
            "come first are shared too. CPU s: of the busiest rank; wall time falls with P only "
            "where every rank has a core.",
            "P = 1 is the same command on one rank.",
        ),
        plot=Bars("peak, MB per rank", ("peak MB per rank",)),
    )


def _bounded(mode: str, ranks: int, report: dict[str, Any]) -> tuple[object, ...]:
    methods = [rank["methods"]["crown"] for rank in report["ranks"]]
    highest = max(methods, key=lambda own: int(own["peak_bytes"]))
    return (
        f"{mode}, P={ranks}",
        NETWORK,
        ranks,
        highest["peak_bytes"] / MEGABYTE,
        _weights(highest["peak_by_kind"]),
        max(own["cpu_seconds"] for own in methods),
        None,
    )


def _domains(setting: Setting) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for ranks, record in equal_work(setting, WORLDS).items():
        peak, kinds = highest_peak(record)
        wall = record["seconds"]["total"]
        name = f"shard_specs + shard_domains, P={ranks}"
        rows.append((name, "256x6", ranks, peak / MEGABYTE, _weights(kinds), None, wall))
    return rows


def _weights(kinds: Mapping[str, int]) -> float:
    return (kinds["weights"] + kinds["gathered_weights"]) / MEGABYTE
