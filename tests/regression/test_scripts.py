"""The set-up scripts: which interpreter is used, what is installed when, and how failures read.

No test here touches the network or makes a real virtual environment: a shell script plays the
interpreter, and records how it was called. A failure means that a newcomer's first command either
breaks, installs where it must not, or fails with something other than one clear sentence.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELL_SCRIPTS = sorted([*ROOT.glob("scripts/**/*.sh"), ROOT / ".ci" / "run"])

# Answers what environment.sh asks of an interpreter, and lacks every package itself.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  *version_info*) echo "${FAKE_VERSION:-3.11.7}" ;;
  *missing_packages*) printf 'torch>=2.4\\nonnx>=1.16\\n'; exit 1 ;;
  *ensurepip*) exit "${ENSUREPIP_EXIT:-0}" ;;
  *pip.__file__*) echo /base/pip ;;
  "-m venv "*) folder="${@: -1}"; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python" ;;
  *"-m pip install"*) echo "${PIP_OUTPUT:-}"; exit "${PIP_EXIT:-0}" ;;
esac
"""


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@dataclass(frozen=True)
class Checkout:
    """A copy of the set-up files in an empty folder, with a fake interpreter beside it."""

    root: Path
    calls: Path
    fake: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def prepare(self, python: Path | str | None, **environment: str) -> subprocess.CompletedProcess:
        """Run prepare_python as quickstart.sh does; its last line on stdout is PY."""
        self.calls.write_text("")
        command = 'set -euo pipefail; source scripts/environment.sh; prepare_python; echo "$PY"'
        variables = {**os.environ, "CALLS": str(self.calls), **environment}
        variables.pop("ABCROWN_PYTHON", None)
        if python is not None:
            variables["ABCROWN_PYTHON"] = str(python)
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.root,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def pip_calls(self) -> list[str]:
        return [call for call in self.calls.read_text().splitlines() if "pip install" in call]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a checkout"  # a space, as in many home folders
    (root / "scripts").mkdir(parents=True)
    for name in ("scripts/environment.sh", "scripts/missing_packages.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    fake = write_program(tmp_path / "bin" / "fake-python", FAKE_PYTHON)
    return Checkout(root, tmp_path / "calls", fake)


def sentence(result: subprocess.CompletedProcess) -> str:
    """Return the one line of stderr of a run that has to have failed with exit code 1."""
    assert result.returncode == 1, result
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and lines[0].endswith("."), lines
    return lines[0]


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("script", ["scripts/quickstart.sh", "scripts/test.sh", ".ci/run"])
def test_every_script_refuses_an_old_python_in_one_sentence(script: str, tmp_path: Path) -> None:
    old = write_program(tmp_path / "python", "#!/usr/bin/env bash\necho 3.9.18\n")
    environment = {**os.environ, "ABCROWN_PYTHON": str(old)}
    result = subprocess.run(
        ["bash", str(ROOT / script)], env=environment, capture_output=True, text=True, check=False
    )
    assert sentence(result) == (
        f"error: Python 3.10 or newer is needed, and ABCROWN_PYTHON names '{old}', which is 3.9.18."
    )


def test_a_missing_interpreter_is_named(checkout: Checkout) -> None:
    assert "ABCROWN_PYTHON names '/no/such', which is no program" in sentence(
        checkout.prepare("/no/such")
    )


def test_a_program_that_is_no_python_is_named(checkout: Checkout, tmp_path: Path) -> None:
    program = write_program(tmp_path / "program", "#!/usr/bin/env bash\nexit 3\n")
    assert "does not run as a Python" in sentence(checkout.prepare(program))


def test_no_new_python_on_the_path_says_which_was_found(checkout: Checkout, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    versions = ("python", "python3", *(f"python3.{minor}" for minor in range(10, 15)))
    for name in versions:
        write_program(folder / name, "#!/usr/bin/env bash\necho 3.8.1\n")
    result = checkout.prepare(None, PATH=f"{folder}:{os.environ['PATH']}")
    assert "Python 3.10 or newer is needed and python3 is 3.8.1" in sentence(result)


def test_an_interpreter_that_has_everything_is_used_as_it_is(checkout: Checkout) -> None:
    result = checkout.prepare(sys.executable)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [sys.executable]
    assert not checkout.venv.exists()


def test_a_bare_interpreter_becomes_the_base_of_venv(checkout: Checkout) -> None:
    result = checkout.prepare(checkout.fake)
    assert result.returncode == 0, result.stderr
    assert "lacks torch>=2.4 onnx>=1.16: making .venv from it." in result.stdout
    assert result.stdout.splitlines()[-1] == str(checkout.venv / "bin" / "python")
    torch, auto_lirpa, rest = checkout.pip_calls()
    assert torch.endswith("torch torchvision")
    assert auto_lirpa.endswith("--no-deps auto_LiRPA==0.3")
    assert rest.endswith(f"-e {checkout.root}[test]")


def test_a_second_run_installs_nothing(checkout: Checkout) -> None:
    assert checkout.prepare(checkout.fake).returncode == 0
    again = checkout.prepare(checkout.fake)
    assert again.returncode == 0 and checkout.pip_calls() == []
    assert again.stdout.splitlines() == [str(checkout.venv / "bin" / "python")]
    # ... nor does one that leaves ABCROWN_PYTHON unset.
    assert checkout.prepare(None).returncode == 0 and checkout.pip_calls() == []


def test_changed_requirements_are_installed_into_the_same_venv(checkout: Checkout) -> None:
    assert checkout.prepare(checkout.fake).returncode == 0
    (checkout.venv / "kept").touch()
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"tqdm>=4.60"', '"tqdm>=4.61"'))
    assert checkout.prepare(checkout.fake).returncode == 0
    assert len(checkout.pip_calls()) == 3 and (checkout.venv / "kept").exists()


def test_changed_lint_rules_install_nothing(checkout: Checkout) -> None:
    assert checkout.prepare(checkout.fake).returncode == 0
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("line-length = 100", "line-length = 99"))
    assert checkout.prepare(checkout.fake).returncode == 0
    assert checkout.pip_calls() == []


def test_an_interrupted_install_starts_afresh(checkout: Checkout) -> None:
    assert checkout.prepare(checkout.fake, PIP_EXIT="1").returncode == 1
    (checkout.venv / "half-written").touch()
    assert checkout.prepare(checkout.fake).returncode == 0
    assert len(checkout.pip_calls()) == 3 and not (checkout.venv / "half-written").exists()


def test_another_version_of_python_makes_venv_anew(checkout: Checkout) -> None:
    assert checkout.prepare(checkout.fake).returncode == 0
    program = (checkout.venv / "bin" / "python").read_text()
    write_program(checkout.venv / "bin" / "python", program.replace("3.11.7", "3.10.2"))
    assert checkout.prepare(checkout.fake).returncode == 0
    assert len(checkout.pip_calls()) == 3


def test_a_running_install_is_left_alone(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "abcrown-state").write_text(f"installing {os.getpid()}\n")
    message = sentence(checkout.prepare(checkout.fake))
    assert f"process {os.getpid()} is installing into {checkout.venv}" in message


def test_a_venv_of_the_users_own_is_never_touched(checkout: Checkout) -> None:
    checkout.venv.mkdir()
    (checkout.venv / "precious").touch()
    assert "was not made by this script" in sentence(checkout.prepare(checkout.fake))
    assert (checkout.venv / "precious").exists() and checkout.pip_calls() == []


def test_too_little_disk_is_told_before_anything_is_made(
    checkout: Checkout, tmp_path: Path
) -> None:
    # 1 GiB free, in the columns of `df -Pk`.
    df = "#!/usr/bin/env bash\necho header\necho /dev/x 9999999 8951423 1048576 90% /\n"
    write_program(tmp_path / "tools" / "df", df)
    result = checkout.prepare(checkout.fake, PATH=f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    assert "GB of disk space are needed" in sentence(result)
    assert "1 GB are free" in sentence(result)
    assert not checkout.venv.exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("WARNING: Retrying ... NewConnectionError(...)", "no network: the package index"),
        ("ERROR: [Errno 28] No space left on device", "the disk filled up while installing"),
        ("ERROR: No matching distribution found for torch", "No matching distribution found"),
    ],
)
def test_a_failed_install_is_explained_and_its_log_named(
    checkout: Checkout, output: str, expected: str
) -> None:
    message = sentence(checkout.prepare(checkout.fake, PIP_EXIT="1", PIP_OUTPUT=output))
    assert expected in message and f"(log: {checkout.venv / 'install.log'})" in message


def test_a_python_without_ensurepip_lends_its_own_pip(checkout: Checkout) -> None:
    result = checkout.prepare(checkout.fake, ENSUREPIP_EXIT="1")
    assert result.returncode == 0, result.stderr
    calls = checkout.calls.read_text().splitlines()
    assert f"-m venv --without-pip {checkout.venv}" in calls
    assert "/base/pip install --ignore-installed pip" in calls


def test_missing_packages_names_absent_and_outdated_ones(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "missing_packages.py", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["pyyaml>=1", "no-such-thing>=2", "numpy>=999"]\n'
    )
    result = subprocess.run(
        [sys.executable, str(tmp_path / "scripts" / "missing_packages.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    absent, outdated = result.stdout.splitlines()
    assert result.returncode == 1 and absent == "no-such-thing>=2"
    assert outdated.startswith("numpy>=999 (found ")


def _needs_the_packages(script: Path) -> bool:
    text = script.read_text()
    packages = r"^(from|import) (auto_LiRPA_patches|complete_verifier|rank_processes|bench_bab)\b"
    return "__main__" in text and re.search(packages, text, flags=re.MULTILINE) is not None


@pytest.mark.parametrize(
    "script",
    [path for path in sorted(ROOT.glob("scripts/*.py")) if _needs_the_packages(path)],
    ids=lambda path: path.stem,
)
def test_a_script_finds_the_packages_from_any_folder(script: Path) -> None:
    """Python puts the folder of the script on its path, not the one above."""
    before, found, _ = script.read_text().partition("\nsys.path.insert(0, str(")
    assert found, f"{script.name} imports from the folder above, and nothing puts it on the path"
    assert "import auto_LiRPA_patches" not in before
    assert not re.search(r"^from (auto_LiRPA_patches|complete_verifier)", before, re.MULTILINE)
