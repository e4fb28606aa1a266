"""Records against a competition's answers: a contradiction must never go unseen."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from complete_verifier.results.compare import (
    Outcome,
    compare,
    contradictions,
    missed_counterexamples,
    read_expected,
)
from complete_verifier.results.errors import ResultError
from complete_verifier.results.record_file import RecordFile

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "score.py"
HEADER = "onnx,vnnlib,timeout_s,verdict,tools_sat,tools_unsat\n"


def _expected(tmp_path: Path, *verdicts: str) -> Path:
    """Expected verdicts such as `sat 5 0` for the instances 0, 1, …."""
    path = tmp_path / "expected.csv"
    lines = []
    for number, text in enumerate(verdicts):
        verdict, sat, unsat = text.split()
        lines.append(
            f"onnx/net_{number}.onnx,vnnlib/prop_{number}.vnnlib,60,{verdict},{sat},{unsat}\n"
        )
    path.write_text(HEADER + "".join(lines))
    return path


def _compare(record, expected: Path, verdicts: list[str]):
    records = [record(number, verdict).to_json() for number, verdict in enumerate(verdicts)]
    return compare(records, read_expected(expected))


def test_each_pair_of_verdicts_has_its_outcome(record, tmp_path) -> None:
    expected = _expected(
        tmp_path,
        "sat 5 0",
        "unsat 0 5",
        "sat 5 1",
        "unsat 1 5",
        "unknown 0 0",
        "sat 4 0",
        "unsat 0 3",
        "sat 1 0",
        "sat 9 0",
    )
    verdicts = ["sat", "unsat", "unsat", "sat", "sat", "unknown", "timeout", "error"]
    comparisons = _compare(record, expected, verdicts)
    assert [item.outcome for item in comparisons] == [
        Outcome.AGREES,
        Outcome.AGREES,
        Outcome.CONTRADICTS,
        Outcome.CONTRADICTS,
        Outcome.NEW,
        Outcome.OPEN,
        Outcome.OPEN,
        Outcome.FAILED,
        Outcome.MISSING,
    ]
    assert contradictions(comparisons) == comparisons[2:4]
    missed = missed_counterexamples(comparisons, least_tools=3)
    assert missed == (comparisons[5], comparisons[8])


@pytest.mark.parametrize(
    ("onnx", "found"),
    [
        ("/data/bench/onnx/net_0.onnx", True),
        ("/data/bench/onnx/net_0.onnx.gz", True),
        ("onnx/net_0.onnx", True),
        ("/data/other_onnx/net_0.onnx", False),
        ("net_0.onnx", False),
    ],
)
def test_records_are_found_by_the_end_of_their_paths(record, tmp_path, onnx, found) -> None:
    plain = {**record().to_json(), "onnx": onnx}
    (item,) = compare([plain], read_expected(_expected(tmp_path, "unsat 0 5")))
    assert (item.outcome is Outcome.AGREES) == found


def test_records_that_disagree_about_one_instance_are_refused(record, tmp_path) -> None:
    expected = read_expected(_expected(tmp_path, "unsat 0 5"))
    records = [record(0, verdict).to_json() for verdict in ("sat", "unsat")]
    with pytest.raises(ResultError, match=r"net_0\.onnx .* the records disagree: sat, unsat"):
        compare(records, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onnx,vnnlib\n", r"expected\.csv:1: expected the columns .*; verdict, tools_sat"),
        (HEADER + "a,b,60,sat,many,0\n", r"expected\.csv:2: expected integers"),
    ],
)
def test_a_malformed_expectation_is_refused(tmp_path, text, message) -> None:
    path = tmp_path / "expected.csv"
    path.write_text(text)
    with pytest.raises(ResultError, match=message):
        read_expected(path)


def _score(record, tmp_path: Path, expected: Path, verdicts: list[str], *options: str) -> int:
    file = RecordFile(tmp_path / "out.json")
    for number, verdict in enumerate(verdicts):
        file.add(record(number, verdict))
    main = runpy.run_path(str(SCRIPT))["main"]
    return main([str(file.path), str(expected), *options])


@pytest.mark.parametrize(
    ("verdicts", "options", "code"),
    [
        (["sat", "unsat"], [], 0),
        (["unknown", "unsat"], [], 0),
        (["unknown", "unsat"], ["--require_sat", "3"], 1),
        (["unknown", "unsat"], ["--require_sat", "6"], 0),
        (["unsat", "unsat"], [], 0),
        (["sat", "sat"], [], 0),
        ([], [], 2),
    ],
)
def test_the_score_fails_on_required_misses_and_on_nothing_to_compare(
    record, tmp_path, capsys, verdicts, options, code
) -> None:
    expected = _expected(tmp_path, "sat 5 0", "unsat 0 5")
    assert _score(record, tmp_path, expected, verdicts, *options) == code
    assert "net_0.onnx prop_0.vnnlib" in capsys.readouterr().out


def test_the_script_runs_from_anywhere_and_names_a_file_it_cannot_read(record, tmp_path) -> None:
    expected = _expected(tmp_path, "sat 5 0")
    command = [sys.executable, str(SCRIPT), "none.json", str(expected)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "none.json: cannot read the records: No such file or directory.\n"
