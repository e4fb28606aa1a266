"""The record file is valid JSON with every finished instance, whatever happens in between."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

from complete_verifier.results.atomic import write_text_atomically
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record import (
    Bounds,
    BranchAndBound,
    Memory,
    Parallel,
    Parameters,
    Seconds,
)
from complete_verifier.results.record_file import RecordFile, read_records
from complete_verifier.results.record_reader import record_from_json
from complete_verifier.results.versions import collect_versions

SCHEMA = {
    "onnx": None,
    "vnnlib": None,
    "verdict": None,
    "reason": None,
    "seconds": ["load", "attack", "initial_bounds", "bab", "total"],
    "bounds": ["crown", "alpha_crown"],
    "bab": ["rounds", "domains_visited", "domains_left", "lower_bound"],
    "memory": ["baseline_bytes", "peak_bytes", "baseline_by_kind", "peak_by_kind"],
    "parallel": ["world_size", "data", "tp", "fsdp", "shard_specs", "shard_domains", "parameters"],
    "counterexample": None,
    "events": None,
    "ignored": None,
    "config_hash": None,
    "versions": None,
}


def _strict_loads(text: str):
    """JSON as the standard has it: NaN and Infinity are errors."""

    def refuse(name: str):
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_record_has_the_documented_keys_in_their_order(record) -> None:
    plain = record().to_json()
    assert list(plain) == list(SCHEMA)
    for key, fields in SCHEMA.items():
        if fields is not None:
            assert list(plain[key]) == fields


def test_every_field_arrives_in_the_file(record, tmp_path) -> None:
    full = record(
        verdict="sat",
        reason="attack",
        seconds=Seconds(load=0.5, attack=0.25, total=0.75),
        bounds=Bounds(crown=(0.340795, -1.5), alpha_crown=(0.5,)),
        bab=BranchAndBound(rounds=3, domains_visited=12, domains_left=2, lower_bound=-0.125),
        memory=Memory(
            baseline_bytes=(10, 11),
            peak_bytes=(20, 21),
            baseline_by_kind=({"weights": 10}, {"weights": 11}),
            peak_by_kind=({"weights": 10, "other": 10}, {"weights": 11, "other": 10}),
        ),
        parallel=Parallel(
            world_size=2,
            data=2,
            fsdp=True,
            parameters=Parameters(full_bytes=100, bytes_per_rank=(50, 50)),
        ),
        counterexample="cex_0.txt",
        ignored=("bab.cut.enabled",),
        config_hash="abc",
        versions={"torch": "2.14.1"},
    )
    RecordFile(tmp_path / "out.json").add(full)
    (saved,) = read_records(tmp_path / "out.json")
    assert saved == full.to_json() and record_from_json(saved) == full
    assert saved["verdict"] == "sat" and saved["counterexample"] == "cex_0.txt"
    assert saved["bounds"] == {"crown": [0.340795, -1.5], "alpha_crown": [0.5]}
    assert saved["bab"]["lower_bound"] == -0.125 and saved["bab"]["rounds"] == 3
    assert saved["memory"] == {
        "baseline_bytes": [10, 11],
        "peak_bytes": [20, 21],
        "baseline_by_kind": [{"weights": 10}, {"weights": 11}],
        "peak_by_kind": [{"weights": 10, "other": 10}, {"weights": 11, "other": 10}],
    }
    assert saved["parallel"]["fsdp"] is True
    assert saved["parallel"]["parameters"] == {"full_bytes": 100, "bytes_per_rank": [50, 50]}
    assert saved["ignored"] == ["bab.cut.enabled"] and saved["versions"] == {"torch": "2.14.1"}


def test_numbers_that_json_lacks_are_strings_and_read_back(record, tmp_path) -> None:
    crown = (math.inf, -math.inf, math.nan, np.float64("-inf"), 1.0)
    bab = BranchAndBound(lower_bound=-math.inf)
    RecordFile(tmp_path / "out.json").add(record(bounds=Bounds(crown=crown), bab=bab))
    (saved,) = _strict_loads((tmp_path / "out.json").read_text())
    assert saved["bounds"]["crown"] == ["inf", "-inf", "nan", "-inf", 1.0]
    assert saved["bab"]["lower_bound"] == "-inf"
    assert np.array_equal([float(value) for value in saved["bounds"]["crown"]], crown, True)
    assert np.array_equal(record_from_json(saved).bounds.crown, crown, True)
    assert record_from_json(saved).bab.lower_bound == -math.inf


def test_what_was_not_computed_is_null_and_not_a_number(record) -> None:
    assert record().to_json()["bab"]["lower_bound"] is None
    assert record().to_json()["counterexample"] is None


def test_bounds_keep_every_bit(record, tmp_path) -> None:
    crown = tuple(np.random.default_rng(0).normal(size=100).tolist())
    RecordFile(tmp_path / "out.json").add(record(bounds=Bounds(crown=crown)))
    assert tuple(read_records(tmp_path / "out.json")[0]["bounds"]["crown"]) == crown


def test_the_file_is_complete_after_every_instance(record, tmp_path) -> None:
    path = tmp_path / "deep" / "out.json"
    file = RecordFile(path)
    assert _strict_loads(path.read_text()) == []
    for number in range(4):
        file.add(record(number))
        saved = _strict_loads(path.read_text())
        assert [item["onnx"] for item in saved] == [f"onnx/net_{n}.onnx" for n in range(number + 1)]
    assert [entry.name for entry in path.parent.iterdir()] == ["out.json"]


def test_an_older_run_is_not_mixed_in(record, tmp_path) -> None:
    RecordFile(tmp_path / "out.json").add(record(7))
    RecordFile(tmp_path / "out.json")
    assert read_records(tmp_path / "out.json") == []


def test_kept_records_are_there_from_the_start(record, tmp_path) -> None:
    file = RecordFile(tmp_path / "out.json", [record(7), record(3)])
    assert len(read_records(tmp_path / "out.json")) == 2
    file.add(record(4))
    names = [item["onnx"] for item in read_records(tmp_path / "out.json")]
    assert names == [f"onnx/net_{number}.onnx" for number in (7, 3, 4)]


@pytest.mark.parametrize("change", [{"verdict": "maybe"}, {"bab": {"x": 1}}, {"seconds": None}])
def test_a_record_of_another_version_is_refused(record, change) -> None:
    with pytest.raises(ResultError, match="expected the fields"):
        record_from_json({**record().to_json(), **change})


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(record, tmp_path, monkeypatch, failing) -> None:
    """The power goes at the worst moments: text half on disk, or written but not yet in place."""
    path = tmp_path / "out.json"
    file = RecordFile(path)
    file.add(record(0))
    before = path.read_bytes()

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, crash)
        with pytest.raises(KeyboardInterrupt):
            file.add(record(1))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    file.add(record(2))
    assert len(read_records(path)) == 3  # the record of the failed write is not lost


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match=r"out\.json: cannot write the file: No space left"):
        write_text_atomically(tmp_path / "out.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_noticed_at_the_start(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "out.json", tmp_path):
        with pytest.raises(ResultError, match=r"cannot write the file"):
            RecordFile(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link(tmp_path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_text_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path) -> None:
    """As `--results_file /dev/null` must not turn the device into a file."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text_atomically(tmp_path / "pipe", "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{]"])
def test_a_file_that_is_no_array_of_records_is_refused(tmp_path, text) -> None:
    path = tmp_path / "out.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=r"out\.json: expected"):
        read_records(path)


def test_versions_name_what_computed() -> None:
    versions = collect_versions()
    assert versions["torch"].split(".")[0].isdigit() and versions["python"].startswith("3.")
    assert {"auto_LiRPA", "onnx", "onnxruntime", "numpy"} <= versions.keys()
    assert all(isinstance(value, str) and value for value in versions.values())
