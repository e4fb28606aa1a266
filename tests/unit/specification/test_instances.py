"""Reading instance lists: slicing, compressed siblings, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from complete_verifier.specification import SpecificationError, read_instances


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(4):
        (tmp_path / f"n{index}.onnx").touch()
        (tmp_path / f"p{index}.vnnlib.gz").touch()
    lines = [f"n{i}.onnx,p{i}.vnnlib,{i + 1}.5" for i in range(4)]
    (tmp_path / "instances.csv").write_text("\n".join(lines) + "\n\n")
    return tmp_path


def indices(folder: Path, **options: object) -> list[int]:
    return [i.index for i in read_instances(folder / "instances.csv", **options)]  # type: ignore[arg-type]


def test_instances_are_resolved_with_their_gz_siblings(folder: Path) -> None:
    first = read_instances(folder / "instances.csv")[0]
    assert first.onnx == folder / "n0.onnx"
    assert first.vnnlib == folder / "p0.vnnlib.gz"
    assert first.timeout == 1.5


def test_a_header_quotes_and_a_root_are_understood(folder: Path) -> None:
    elsewhere = folder / "lists"
    elsewhere.mkdir()
    path = elsewhere / "i.csv"
    path.write_text('\ufeffonnx,vnnlib,timeout\r\n"./n1.onnx", p2.vnnlib ,10\r\n')
    (instance,) = read_instances(path, folder)
    assert (instance.onnx.name, instance.vnnlib.name) == ("n1.onnx", "p2.vnnlib.gz")
    assert instance.index == 0


def test_start_is_inclusive_and_end_exclusive(folder: Path) -> None:
    assert indices(folder) == [0, 1, 2, 3]
    assert indices(folder, start=1, end=3) == [1, 2]
    assert indices(folder, start=2, end=10000) == [2, 3]
    assert indices(folder, start=1, end=2, select=[3, 0]) == [3, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 4}, "start 4 and end None keep none of its 4 instances"),
        ({"start": 2, "end": 2}, "start 2 and end 2 keep none"),
        ({"select": [1, 7]}, "between 0 and 3, got 7"),
        ({"select": [-1]}, "between 0 and 3, got -1"),
    ],
)
def test_a_slice_without_instances_is_an_error(
    folder: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecificationError, match=message):
        indices(folder, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "n0.onnx,p0.vnnlib,1\nn1.onnx,p1.vnnlib\n",
            "instances.csv:2: expected onnx,vnnlib,timeou",
        ),
        ("n0.onnx,p0.vnnlib,soon\n", "instances.csv:1: expected a timeout .* got 'soon'"),
        ("n0.onnx,p0.vnnlib,-1\n", "expected a timeout in seconds above 0, got '-1'"),
        ("n0.onnx,p0.vnnlib,nan\n", "expected a timeout in seconds above 0, got 'nan'"),
        ("\nn0.onnx,absent.vnnlib,1\n", r"instances.csv:2: .*absent.vnnlib is listed but neither"),
        ("onnx,vnnlib,timeout\n", "expected lines onnx,vnnlib,timeout, got none"),
    ],
)
def test_a_malformed_list_names_file_and_line(folder: Path, text: str, message: str) -> None:
    (folder / "instances.csv").write_text(text)
    with pytest.raises(SpecificationError, match=message):
        read_instances(folder / "instances.csv")


def test_an_absent_file_matters_only_if_it_is_selected(folder: Path) -> None:
    (folder / "n2.onnx").unlink()
    assert indices(folder, start=0, end=2) == [0, 1]
    with pytest.raises(SpecificationError, match="instances.csv:3: "):
        indices(folder)


def test_an_absent_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="none.csv: expected this file"):
        read_instances(tmp_path / "none.csv")
