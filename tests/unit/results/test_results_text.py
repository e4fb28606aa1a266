"""What people and scripts read: results file, verdict lines, summary, exit code, progress."""

from __future__ import annotations

import io
import logging

import pytest

from complete_verifier.results.progress import Printer, Progress
from complete_verifier.results.record import Memory, Seconds
from complete_verifier.results.results_file import ResultsFile
from complete_verifier.results.summary import format_summary, verdict_line
from complete_verifier.results.verdict import Verdict, exit_code


def test_a_single_instance_has_the_verdict_first_and_then_the_counterexample(
    record, tmp_path
) -> None:
    path = tmp_path / "out.txt"
    ResultsFile(path, batch=False).add(0, record(verdict="sat"), "((X_0 1.0)\n(Y_0 2.0))\n")
    assert path.read_text() == "sat\n((X_0 1.0)\n(Y_0 2.0))\n"


def test_a_single_instance_without_counterexample_is_one_line(record, tmp_path) -> None:
    path = tmp_path / "out.txt"
    ResultsFile(path, batch=False).add(0, record(verdict="timeout"))
    assert path.read_text() == "timeout\n"


def test_a_batch_is_csv_with_the_numbers_of_the_instances_file(record, tmp_path) -> None:
    path = tmp_path / "out.txt"
    file = ResultsFile(path, batch=True)
    assert path.read_text() == "index,onnx,vnnlib,verdict,seconds\n"
    file.add(5, record(0))
    file.add(6, record(1, "sat"), "((X_0 1.0)\n(Y_0 2.0))\n")
    assert path.read_text() == (
        "index,onnx,vnnlib,verdict,seconds\n"
        "5,onnx/net_0.onnx,vnnlib/prop_0.vnnlib,unsat,1.000\n"
        "6,onnx/net_1.onnx,vnnlib/prop_1.vnnlib,sat,2.000\n"
    )


def test_the_verdict_line_names_files_time_and_reason(record) -> None:
    line = verdict_line(3, 48, record(2, "sat", reason="attack"))
    assert line == "[3/48] net_2.onnx prop_2.vnnlib: sat in 3.0 s (attack)"


def test_a_single_result_is_one_sentence(record) -> None:
    assert format_summary([record(seconds=Seconds(total=3.21))]) == "Result: unsat in 3.2 s"


def test_the_summary_of_a_batch_counts_lists_and_times(record) -> None:
    verdicts = ["unsat", "sat", "unsat", "error"]
    records = [
        record(
            number,
            verdict,
            ignored=("bab.cut.enabled",),
            memory=Memory(peak_bytes=(2**20 * (number + 1), 2**20)),
        )
        for number, verdict in enumerate(verdicts)
    ]
    assert format_summary(records, indices=[10, 11, 12, 13]).splitlines() == [
        "unsat        2  instances 10, 12",
        "sat          1  instances 11",
        "unknown      0",
        "timeout      0",
        "error        1  instances 13",
        "Time per instance: mean 2.5 s, longest 4.0 s",
        "Peak tensor memory, rank 0: 4.0 MiB",
        "Peak tensor memory, rank 1: 1.0 MiB",
        "Config keys without effect: bab.cut.enabled",
        "Result: 4 instances: 2 unsat, 1 sat, 0 unknown, 0 timeout, 1 error",
    ]


def test_the_summary_breaks_the_largest_peak_down(record) -> None:
    kinds = {"weights": 2**20, "alpha_beta": 3 * 2**20, "a_matrices": 0}
    small = Memory(baseline_bytes=(2**19,), peak_bytes=(2**20,), peak_by_kind=({"other": 2**20},))
    large = Memory(baseline_bytes=(2**20,), peak_bytes=(2**22,), peak_by_kind=(kinds,))
    lines = format_summary([record(memory=small), record(memory=large)]).splitlines()
    expected = "rank 0: 4.0 MiB (alpha beta 3.0, weights 1.0); before bounds 1.0 MiB"
    assert f"Peak tensor memory, {expected}" in lines


def test_a_run_without_instances_has_a_summary_too() -> None:
    assert format_summary([]).endswith(
        "Result: 0 instances: 0 unsat, 0 sat, 0 unknown, 0 timeout, 0 error"
    )


def test_indices_must_fit_the_records(record) -> None:
    with pytest.raises(ValueError, match=r"expected 1 indices, got 2"):
        format_summary([record()], indices=[0, 1])


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["unsat", "sat"], 0),
        (["unknown", "timeout"], 0),
        (["unsat", "error", "sat"], 1),
        (["error"], 1),
        ([], 0),
    ],
)
def test_the_exit_code_is_zero_unless_an_instance_failed(verdicts, code) -> None:
    """Field case 36, its second half."""
    assert exit_code(Verdict(verdict) for verdict in verdicts) == code


def test_only_the_rank_that_speaks_prints() -> None:
    spoken, silent = io.StringIO(), io.StringIO()
    Printer(True, spoken).line("a result")
    Printer(False, silent).line("a result")
    assert spoken.getvalue() == "a result\n" and silent.getvalue() == ""


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_is_logged_at_most_once_per_interval(caplog) -> None:
    clock, logger = _Clock(), logging.getLogger("test_progress")
    progress = Progress(logger, speaks=True, interval=5.0, clock=clock)
    silent = Progress(logger, speaks=False, interval=5.0, clock=clock)
    with caplog.at_level(logging.INFO, logger="test_progress"):
        for second in range(12):
            clock.now = float(second)
            progress.report("step %d of %d", second, 12)
            silent.report("never")
    assert caplog.messages == ["step 5 of 12", "step 10 of 12"]
