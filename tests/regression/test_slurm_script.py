"""The script for Slurm: which ranks it starts, where they meet, and what it refuses.

`srun` and `scontrol` are played by scripts. A failure means ranks that never find each other, or a
verifier that does not get its flags.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "slurm.sh"


SCONTROL = """case "$*" in
  "show hostnames node[7-8]") printf 'node7\\nnode8\\n' ;;
  "show hostnames many") seq -f 'node%.0f' 1 50000 ;;
  *) exit 1 ;;
esac"""


def submit(
    tmp_path: Path, folder: Path, *flags: str, **slurm: str
) -> subprocess.CompletedProcess[str]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (
        ("srun", 'printf "%s\\n" "threads=${OMP_NUM_THREADS:-} ${SRUN_CPUS_PER_TASK:-}" "$@"'),
        ("scontrol", SCONTROL),
    ):
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    names = ("SLURM_", "OMP_NUM_THREADS", "ABCROWN_PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "SLURM_SUBMIT_DIR": str(folder)}
    environment |= {f"SLURM_{key}": value for key, value in slurm.items()}
    return subprocess.run(
        ["bash", str(SCRIPT), *flags],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


JOB = {"JOB_ID": "81234", "JOB_NODELIST": "node[7-8]", "JOB_NUM_NODES": "2"}


def test_every_gpu_of_every_node_gets_a_rank(tmp_path: Path) -> None:
    flags = ("--config", "a file.yaml", "--timeout", "9")
    run = submit(tmp_path, ROOT, *flags, **JOB, GPUS_ON_NODE="4", CPUS_PER_TASK="32")
    assert run.returncode == 0, run.stderr
    words = run.stdout.splitlines()
    assert words[:2] == ["threads= ", "--kill-on-bad-exit=1"]
    given = dict(zip(words, words[1:], strict=False))
    assert (given["--nnodes"], given["--nproc_per_node"]) == ("2", "4")
    assert (given["--rdzv_id"], given["--rdzv_endpoint"]) == ("81234", "node7:21234")
    assert words[words.index("--") + 1 :] == ["abcrown.py", *flags]


def test_without_gpus_every_core_gets_a_rank_of_one_thread(tmp_path: Path) -> None:
    run = submit(tmp_path, ROOT, **JOB, CPUS_PER_TASK="8")
    assert run.returncode == 0, run.stderr
    words = run.stdout.splitlines()
    assert words[0] == "threads=1 8"
    assert words[words.index("--nproc_per_node") + 1] == "8"


def test_a_list_longer_than_a_pipe_holds_is_read_to_its_end(tmp_path: Path) -> None:
    """Whoever stops reading at the first node kills `scontrol`, and with it the job."""
    run = submit(tmp_path, ROOT, **(JOB | {"JOB_NODELIST": "many"}), GPUS_ON_NODE="1")
    assert run.returncode == 0, run.stderr
    words = run.stdout.splitlines()
    assert words[words.index("--rdzv_endpoint") + 1] == "node1:21234"


def test_outside_of_slurm_it_says_so(tmp_path: Path) -> None:
    run = submit(tmp_path, ROOT)
    assert run.returncode != 0
    assert "start it with sbatch" in run.stderr


def test_another_folder_than_the_checkout_is_refused(tmp_path: Path) -> None:
    run = submit(tmp_path, tmp_path, **JOB)
    assert run.returncode == 2
    assert "found no abcrown.py" in run.stderr
