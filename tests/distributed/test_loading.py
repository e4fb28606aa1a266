"""Ranks that load a network: one at a time, all of them the same file, and all or none.

A failure means host memory for as many copies as ranks, or a proof about two mixed networks.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from auto_LiRPA_patches.errors import RankMismatchError, RanksDisagreeError, VerifierError
from auto_LiRPA_patches.sharding.collectives import Ranks
from auto_LiRPA_patches.sharding.launch import Launch
from auto_LiRPA_patches.sharding.sharded_weights import ShardedWeights
from complete_verifier.config import Config, ConfigError
from complete_verifier.network_cache import NetworkCache
from complete_verifier.session import _check_share
from complete_verifier.turns import Turns
from tests.distributed.ranks import RankPool
from tests.regression.user_runs import random_mlp

pytestmark = pytest.mark.distributed


def _launch(ranks: Ranks) -> Launch:
    rank, size = ranks.world.rank, ranks.world.size
    return Launch(rank, size, rank, size)


def load_from_own_folder(ranks: Ranks, folders: list[str]) -> str:
    """Each rank loads net.onnx from a folder of its own, as hosts do."""
    session = SimpleNamespace(
        ranks=ranks,
        launch=_launch(ranks),
        config=Config(),
        device=torch.device("cpu"),
        weights=lambda: ShardedWeights(ranks.data),
    )
    networks = NetworkCache(cast("Any", session))
    try:
        network = networks.network(Path(folders[ranks.world.rank]) / "net.onnx")
    except RankMismatchError as error:
        return f"{type(error).__name__}: {error}"
    return f"{network.num_outputs} outputs"


def take_turns(ranks: Ranks, file: str) -> None:
    def work() -> None:
        with Path(file).open("a") as log:
            print("begins", ranks.world.rank, file=log, flush=True)
            time.sleep(0.05)
            print("ends", ranks.world.rank, file=log, flush=True)

    Turns.on_each_host(ranks.world, _launch(ranks)).take("the work", work)


def fail_in_turn(ranks: Ranks, failing: list[int]) -> str:
    def work() -> int:
        if ranks.world.rank in failing:
            raise ConfigError("no room")
        return ranks.world.rank

    try:
        return str(Turns.on_each_host(ranks.world, _launch(ranks)).take("the work", work))
    except VerifierError as error:
        return f"{type(error).__name__}: {error}"


def test_networks_of_one_shape_and_other_weights_are_not_mixed(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for folder, seed in zip(folders, (1, 1, 2), strict=True):
        folder.mkdir()
        random_mlp(folder / "net.onnx", (3, 8, 2), seed=seed)
    same = [str(folder) for folder in folders[:2]]
    assert rank_pool.run(load_from_own_folder, 2, same, timeout=200) == ["2 outputs"] * 2
    for text in rank_pool.run(load_from_own_folder, 2, [same[0], str(folders[2])], timeout=200):
        assert text.startswith(f"{RanksDisagreeError.__name__}: the content of net.onnx: ")
        assert "on rank 0" in text and "on rank 1" in text


def test_a_file_that_one_rank_lacks_ends_the_run_on_all(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    random_mlp(tmp_path / "net.onnx", (3, 8, 2))
    for text in rank_pool.run(
        load_from_own_folder, 2, [str(tmp_path), str(tmp_path / "empty")], timeout=200
    ):
        assert "no such file" in text and "on rank 1" in text


def test_ranks_of_a_host_work_one_after_the_other(rank_pool: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "log"
    rank_pool.run(take_turns, 3, str(file))
    assert file.read_text().splitlines() == [
        f"{what} {rank}" for rank in range(3) for what in ("begins", "ends")
    ]


def test_what_fails_on_all_ranks_is_their_error_and_else_a_disagreement(
    rank_pool: RankPool,
) -> None:
    assert rank_pool.run(fail_in_turn, 2, []) == ["0", "1"]
    assert rank_pool.run(fail_in_turn, 2, [0, 1]) == ["ConfigError: no room"] * 2
    for text in rank_pool.run(fail_in_turn, 2, [1]):
        assert text.startswith("RanksDisagreeError: the work:")
        assert "'done' on rank 0, 'no room' on rank 1" in text


def test_ranks_with_nothing_to_share_are_refused() -> None:
    _check_share(Config(), Launch())
    with pytest.raises(ConfigError, match="2 ranks were started, but nothing is spread over them"):
        _check_share(Config(), Launch(0, 2, 0, 2))
