"""Where input files are looked for, in which order, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from complete_verifier.config import ConfigError, InputPaths


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The three places: working directory, folder of the config, root path."""
    folders = {name: tmp_path / name for name in ("cwd", "config", "root")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["cwd"])
    return folders


@pytest.mark.parametrize(
    ("present", "found"),
    [
        (["cwd", "config", "root"], "cwd"),
        (["config", "root"], "config"),
        (["root"], "root"),
    ],
)
def test_order_of_the_places(places: dict[str, Path], present: list[str], found: str) -> None:
    for name in present:
        (places[name] / "a.onnx").write_text(name, encoding="utf-8")
    paths = InputPaths.create((places["config"],), str(places["root"]))
    assert paths.find("a.onnx", "model.onnx_path").read_text(encoding="utf-8") == found


def test_a_gz_sibling_serves(places: dict[str, Path]) -> None:
    (places["root"] / "a.onnx.gz").touch()
    paths = InputPaths((), places["root"])
    assert paths.find("a.onnx", "model.onnx_path") == places["root"] / "a.onnx.gz"
    (places["root"] / "a.onnx").touch()
    assert paths.find("a.onnx", "model.onnx_path") == places["root"] / "a.onnx"


def test_an_absolute_path_is_looked_for_once(places: dict[str, Path]) -> None:
    name = str(places["config"] / "a.onnx")
    assert InputPaths((), places["root"]).candidates(name) == (Path(name), Path(f"{name}.gz"))


def test_the_root_is_found_beside_the_config(places: dict[str, Path]) -> None:
    (places["config"] / "data").mkdir()
    paths = InputPaths.create((places["config"],), "data")
    assert paths.root == places["config"] / "data"
    (places["cwd"] / "data").mkdir()
    assert InputPaths.create((places["config"],), "data").root == Path("data")


def test_error_lists_where_it_looked(places: dict[str, Path]) -> None:
    paths = InputPaths((places["config"],), places["root"])
    with pytest.raises(ConfigError) as caught:
        paths.find("a.onnx", "model.onnx_path")
    looked = ", ".join(str(places[name] / "a.onnx") for name in ("cwd", "config", "root"))
    assert str(caught.value) == (
        f"model.onnx_path: file 'a.onnx' not found, nor 'a.onnx.gz'. Looked for {looked}. "
        f"Correct the name, or set general.root_path to the folder it is relative to."
    )


def test_no_root_is_no_place(places: dict[str, Path]) -> None:
    assert InputPaths.create((), "").candidates("a.csv") == (Path("a.csv"), Path("a.csv.gz"))
