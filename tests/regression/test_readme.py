"""The README's commands name files, flags and keys that exist.

A failure means that a newcomer who copies a command gets an error.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import readme_tables
import yaml

from complete_verifier.config import load_config

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


def test_the_readme_names_both_set_up_commands() -> None:
    assert {"bash scripts/quickstart.sh", "bash scripts/test.sh"} <= set(commands())


@pytest.mark.parametrize("command", commands())
def test_the_files_of_a_command_exist(command: str) -> None:
    made_by_the_reader = {"net.onnx", "property.vnnlib", "out.json", ".venv/bin/activate"}
    for word in shlex.split(command):
        if re.search(r"\.(sh|py|yaml|onnx|vnnlib|json)$|/", word):
            assert word in made_by_the_reader or (ROOT / word).is_file(), word


@pytest.mark.parametrize("command", [line for line in commands() if "abcrown.py" in line])
def test_the_flags_of_a_command_are_read(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    load_config(words[words.index("abcrown.py") + 1 :])


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_config_of_the_readme_loads(block: str, tmp_path: Path) -> None:
    assert yaml.safe_load(block)
    config = tmp_path / "config.yaml"
    config.write_text(block.replace("path/to/folder", str(tmp_path)))
    (tmp_path / "instances.csv").write_text("net.onnx,property.vnnlib,10\n")
    assert load_config(["--config", str(config)]).ignored == ()


def test_local_links_and_paths_exist() -> None:
    for path in re.findall(r"`((?:scripts|exp_configs|\.ci)/?[\w./]*)`", README):
        assert (ROOT / path).exists(), path
    links = re.findall(r"\]\(([^):#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_tables_made_from_the_code_are_those_of_the_code() -> None:
    """If not: python scripts/readme_tables.py readme."""
    assert readme_tables.renewed(README) == README
    with pytest.raises(ValueError, match="keys.* found it 0 times"):
        readme_tables.renewed(README.replace("<!-- keys -->", ""))
