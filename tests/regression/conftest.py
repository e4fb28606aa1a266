"""Run the whole program inside the test process, from an empty folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from complete_verifier.abcrown import main
from tests.regression.user_runs import LITTLE, Run, read_json

Verify = Callable[..., Run]


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Run]]:
    """`program(*argv)`: the command line in `tmp_path`; records come from out.json there."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    deterministic = torch.are_deterministic_algorithms_enabled()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as torchrun gives each rank; bits may depend on the number

    def run(*argv: object) -> Run:
        (tmp_path / "out.json").unlink(missing_ok=True)
        capsys.readouterr()
        code = main(["--device", "cpu", *map(str, argv)])
        shown = capsys.readouterr()
        return Run(code, shown.out, shown.err, read_json(tmp_path / "out.json"))

    yield run
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def verify(program: Callable[..., Run], tmp_path: Path) -> Verify:
    """`verify(onnx, property_text, *flags)`: one instance with little effort."""

    def run(onnx: Path, text: str, *flags: object) -> Run:
        (tmp_path / "property.vnnlib").write_text(text)
        names = ("--onnx_path", onnx, "--vnnlib_path", "property.vnnlib")
        fixed = ("--complete_verifier", "skip", "--result_json", "out.json")
        return program(*fixed, *LITTLE, *names, *flags)

    return run
