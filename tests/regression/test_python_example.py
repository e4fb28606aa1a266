"""The example of the Python interface runs, alone and as two ranks of torchrun.

A failure means that whoever copies it from the documentation gets an error or another answer.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "python_api.py"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def output_of(command: list[str], folder: Path) -> list[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.mark.distributed
def test_one_process_and_two_ranks_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLE))
    alone = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"eps 0.01: class \d everywhere in the ball", alone[0])
    assert re.fullmatch(r"eps 0.5: outputs \[.*\] inside the ball", alone[1])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = output_of([*launcher, "--nproc_per_node", "2", str(EXAMPLE)], tmp_path)
    assert ranks == alone


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_program_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(block)
    assert output_of([sys.executable, "program.py"], tmp_path)
