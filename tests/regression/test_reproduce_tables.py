"""The tables of the published experiments: what is compared, and how it is written down.

The experiments themselves take minutes. A failure here means that a table could show agreement
where there is none, or that the stock library is no longer measured as ours is.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tables import experiment5, experiment6, ranks, scaling, verifications
from tables.ranks import RunFailedError, Setting
from tables.table import Bars, Table, draw

from tests.regression.user_runs import ROOT

TABLE = Table(
    name="t",
    title="A table",
    headings=("network", "paper MB", "MB"),
    rows=(("a", None, 1.23456), ("b", 3, 4.0)),
    notes=("A note.",),
    plot=Bars("MB", ("paper MB", "MB")),
)


def test_a_table_is_written_as_markdown_csv_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = [path.name for path in TABLE.write(tmp_path)]
    assert names == ["t.md", "t.csv", "t.png"]
    assert "| a |  | 1.235 |" in (tmp_path / "t.md").read_text()
    with (tmp_path / "t.csv").open() as file:
        assert list(csv.reader(file))[1:] == [["a", "", "1.23456"], ["b", "3", "4.0"]]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert TABLE.text.splitlines()[2].split() == ["network", "paper", "MB", "MB"]


def test_parts_of_a_whole_are_drawn_on_top_of_each_other(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    shown: list[tuple[float, float]] = []
    real = pyplot.Axes.bar

    def bar(axes: Any, spots: Any, heights: Any, width: Any, **options: Any) -> Any:
        drawn = real(axes, spots, heights, width, **options)
        shown.extend((patch.get_y(), patch.get_height()) for patch in drawn)
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyplot.Axes, "bar", bar)
        draw(TABLE, Bars("MB", ("MB", "MB"), stacked=True), tmp_path / "t.png")
    assert shown == [(0.0, 1.23456), (0.0, 4.0), (1.23456, 1.23456), (4.0, 4.0)]


def test_a_row_with_a_cell_too_few_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        Table("t", "A table", ("a", "b"), ((1,),))


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def start(setting: Setting, count: int, command: list[str]) -> None:
        started.append(count)
        Path(command[command.index("--out") + 1]).write_text(json.dumps({"ranks": len(started)}))

    monkeypatch.setattr(ranks, "_start", start)
    anew = Setting("small", tmp_path, tmp_path)
    going_on = replace(anew, resume=True)
    assert ranks.bound(anew, "mlp:8x2", 1)["ranks"] == 1
    assert ranks.bound(going_on, "mlp:8x2", 1)["ranks"] == 1
    assert ranks.bound(going_on, "mlp:8x2", 2)["ranks"] == 2
    assert ranks.bound(going_on, "mlp:8x2", 1, "--fsdp")["ranks"] == 3
    assert ranks.bound(anew, "mlp:8x2", 1)["ranks"] == 4


def record(lower: float, peak: int) -> dict[str, Any]:
    """One verification's record, as far as tables read it."""
    kinds = ("weights", "gathered_weights", "a_matrices", "alpha_beta", "other")
    return {
        "verdict": "unsat",
        "bounds": {"crown": [lower], "alpha_crown": []},
        "bab": {"rounds": 5, "domains_visited": 62, "domains_left": 0, "lower_bound": lower},
        "memory": {
            "peak_bytes": [peak - 1, peak],
            "peak_by_kind": [dict.fromkeys(kinds, 0), {**dict.fromkeys(kinds, 0), "other": peak}],
        },
        "seconds": {"total": 2.0},
    }


def test_bounds_that_differ_in_the_last_bit_are_not_called_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = {1: record(0.1, 10**6), 2: record(0.1, 5 * 10**5), 3: record(0.1 + 2**-56, 10**6)}
    monkeypatch.setattr(verifications, "verify", lambda _, __, ranks, *flags: records[ranks])
    case = verifications.Case("x", "resnet_medium", 130, 960.0, 930.0, (1, 2, 3))
    setting = Setting("small", tmp_path, tmp_path)
    found = [
        dict(zip(verifications.HEADINGS, row, strict=True))
        for row in verifications.compare(setting, [case])
    ]
    assert [row["same bounds"] for row in found] == ["yes", "yes", "NO"]
    assert [row["paper peak MB"] for row in found] == [960.0, 930.0, None]
    assert [row["saved %"] for row in found] == [0.0, 50.0, 0.0]
    assert found[1]["peak MB"] == found[1]["other MB"] == 0.5  # of the rank with the higher peak


def test_cases_with_one_question_have_their_one_rank_run_in_common(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs: list[tuple[object, ...]] = []

    def verify(_: object, *words: object) -> dict[str, Any]:
        runs.append(words)
        return record(0.1, 10**6)

    monkeypatch.setattr(verifications, "verify", verify)
    paper = ("net", None, None, None)
    cases = [
        verifications.Case("weights", *paper, (1, 2), ("--a",)),
        verifications.Case("rows", *paper, (1, 2), ("--a",), ("--rows",)),
        verifications.Case("other question", *paper, (1,), ("--b",)),
    ]
    rows = verifications.compare(Setting("small", tmp_path, tmp_path), cases)
    assert [row[0] for row in rows] == [
        *("weights, P=1", "weights, P=2", "rows, P=1", "rows, P=2", "other question, P=1"),
    ]
    assert runs == [
        ("net", 1, "--a"),
        ("net", 2, "--a"),
        ("net", 2, "--a", "--rows"),
        ("net", 1, "--b"),
    ]


@pytest.mark.parametrize(("moved", "told"), [(0.0, "yes"), (2e-6, "within 2.0e-06"), (2e-5, "NO")])
def test_bounds_of_shared_rows_may_round_otherwise(moved: float, told: str) -> None:
    one, other = record(0.1, 10**6), record(0.1, 10**6)
    other["bounds"]["crown"] = [0.1 + moved]
    assert verifications.agreement(other, one) == told
    other["verdict"] = "unknown"
    assert verifications.agreement(other, one) == "NO"


def test_memory_above_its_share_is_called_missed() -> None:
    peak = verifications.HEADINGS.index("peak MB")

    def row(ranks: int, megabytes: float) -> tuple[Any, ...]:
        cells: list[Any] = [None] * len(verifications.HEADINGS)
        cells[1], cells[peak] = ranks, megabytes
        return tuple(cells)

    text = experiment6.against_the_bar("x", [row(1, 110.0), row(2, 64.0), row(4, 41.0)], 10.0)
    assert "P = 2: 1.080, peak(1) / peak(P) = 1.72; P = 4: 1.240 (MISSED)" in text


def test_rates_of_unequal_work_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    visited = dict.fromkeys(scaling.WORLDS, 600)

    def verify(_: object, __: object, ranks: int, *flags: str) -> dict[str, Any]:
        found = record(0.1, 10**6)
        found["bab"]["domains_visited"] = visited[ranks]
        found["seconds"]["bab"] = 6.0 / ranks
        return found

    monkeypatch.setattr(verifications, "verify", verify)
    setting = Setting("small", tmp_path, tmp_path)
    assert [row[2:] for row in scaling.rate(setting).rows] == [
        (100.0 * ranks, float(ranks)) for ranks in scaling.WORLDS
    ]
    visited[4] = 601
    with pytest.raises(RunFailedError, match="4: 601"):
        scaling.rate(setting)


def ranks_of(path: Path) -> dict[str, Any]:
    (rank,) = json.loads(path.read_text())["ranks"]
    found: dict[str, Any] = rank
    return found


def test_the_stock_library_is_measured_by_the_same_meter(tmp_path: Path) -> None:
    worker = ROOT / "scripts" / "tables" / "bound_worker.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def measured_by(library: str) -> dict[str, Any]:
        # A process of its own: what other tests left behind would be counted as well.
        out = tmp_path / f"{library}.json"
        command = [sys.executable, str(worker), "mlp:64x2", "--out", str(out)]
        command += ["--library", library]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return ranks_of(out)

    ours, stock = measured_by("ours"), measured_by("stock")
    pairs = zip(
        ours["methods"]["crown"]["bounds"], stock["methods"]["crown"]["bounds"], strict=True
    )
    # float32, sums of at most 784 terms; the bounds are of order 10
    assert all(a == pytest.approx(b, abs=1e-3) for a, b in pairs)
    weights = 4 * (784 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10)
    for measured in (ours, stock):
        crown = measured["methods"]["crown"]
        assert measured["parameters"] == weights
        assert weights <= crown["baseline_bytes"] <= weights + 16_384  # box and counters
        assert crown["peak_bytes"] > crown["baseline_bytes"] + 64 * 64 * 4
        assert measured["largest_other_bytes"] <= 784 * 4  # no second copy of a weight
    assert experiment5.peak([ours, stock]) == max(
        rank["methods"]["crown"]["peak_bytes"] for rank in (ours, stock)
    )
