"""Who hears what: rank 0 on the terminal, the others in files, errors always."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from auto_LiRPA_patches.sharding.launch import Launch
from complete_verifier.logs import make_log_folder, rank_logging


def test_rank_0_is_heard_once_per_run(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with rank_logging(Launch(), None):
            logging.getLogger("complete_verifier.test").info("progress")
    assert capsys.readouterr().err == "progress\nprogress\n"


def test_another_rank_writes_a_file_and_shows_errors_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    make_log_folder(folder)
    with rank_logging(Launch(rank=1, world_size=2, local_rank=1, local_world_size=2), folder):
        logging.getLogger("complete_verifier.test").info("progress")
        logging.getLogger("complete_verifier.test").error("an error")
    error = capsys.readouterr().err
    assert "an error" in error and "progress" not in error
    text = (folder / "rank1.log").read_text(encoding="utf-8")
    assert "progress" in text and "an error" in text
