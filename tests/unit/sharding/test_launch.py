"""Reading the launcher's variables: a wrong rank or size must be an error, never a guess."""

from __future__ import annotations

import pytest

from auto_LiRPA_patches.sharding.launch import Launch, launched_by_torchrun, read_launch
from auto_LiRPA_patches.sharding.mesh import MeshError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_plain_process_is_rank_zero_of_one() -> None:
    assert not launched_by_torchrun({"HOME": "/"})
    assert read_launch({"HOME": "/"}) == Launch(0, 1, 0, 1)


def test_torchruns_variables_are_read() -> None:
    assert launched_by_torchrun(TORCHRUN)
    assert read_launch(TORCHRUN) == Launch(3, 4, 1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "x"}, "environment variable RANK to be an integer, got 'x'"),
        ({"LOCAL_RANK": ""}, "environment variable LOCAL_RANK to be an integer, got ''"),
        ({"RANK": "4"}, "got 4, 4, 1, 2"),
        ({"LOCAL_RANK": "2"}, "got 3, 4, 2, 2"),
        ({"LOCAL_WORLD_SIZE": "5"}, "got 3, 4, 1, 5"),
    ],
)
def test_contradicting_variables_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        read_launch({**TORCHRUN, **change})


def test_a_missing_variable_is_named() -> None:
    partial = {k: v for k, v in TORCHRUN.items() if k != "LOCAL_WORLD_SIZE"}
    with pytest.raises(MeshError, match="LOCAL_WORLD_SIZE to be an integer, got None"):
        read_launch(partial)
