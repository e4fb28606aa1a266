"""The age of the process, from which a caller's time limit is counted.

A failure means that answers come after the caller has given up on a busy machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from complete_verifier.standard import process_age as module
from complete_verifier.standard.process_age import process_age

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@linux
def test_the_age_grows_with_the_clock() -> None:
    before = time.monotonic()
    first = process_age()
    between = time.monotonic()
    time.sleep(0.05)
    later = time.monotonic()
    grown = process_age() - first
    after = time.monotonic()
    tick = 0.011  # the system counts in hundredths of a second
    assert later - between - tick <= grown <= after - before + tick


@linux
def test_time_before_our_code_counts() -> None:
    program = "import time; time.sleep(0.4); from complete_verifier.standard.process_age import *"
    run = subprocess.run(
        [sys.executable, "-c", f"{program}; print(process_age())"],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(run.stdout) > 0.4


def test_a_system_that_does_not_tell_is_guessed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("", "1 (a) b", "1 (a b) c " + "x " * 30):
        (tmp_path / "stat").write_text(text)
        monkeypatch.setattr(module, "Path", lambda _: tmp_path / "stat")
        assert process_age() == 1.0
