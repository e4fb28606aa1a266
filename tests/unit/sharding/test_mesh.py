"""The mesh's arithmetic, for every rank of small worlds; no process group needed.

A failure means that ranks would form the wrong groups, and add up what does not belong together.
"""

from __future__ import annotations

import dataclasses

import pytest

from auto_LiRPA_patches.sharding.mesh import Mesh, MeshError

GRIDS = [(1, 1), (2, 1), (2, 2), (4, 2), (6, 2), (6, 3), (8, 4)]


@pytest.mark.parametrize(("world_size", "tp"), GRIDS)
def test_groups_of_each_axis_partition_the_world(world_size: int, tp: int) -> None:
    meshes = [Mesh(world_size, tp, rank) for rank in range(world_size)]
    for groups, size in (
        ({mesh.data_ranks for mesh in meshes}, world_size // tp),
        ({mesh.tp_ranks for mesh in meshes}, tp),
    ):
        assert sorted(rank for group in groups for rank in group) == list(range(world_size))
        assert {len(group) for group in groups} == {size}


@pytest.mark.parametrize(("world_size", "tp"), GRIDS)
def test_each_rank_stands_in_its_groups_where_it_says(world_size: int, tp: int) -> None:
    for rank in range(world_size):
        mesh = Mesh(world_size, tp, rank)
        assert mesh.data_ranks[mesh.data_rank] == rank
        assert mesh.tp_ranks[mesh.tp_rank] == rank
        assert set(mesh.data_ranks) & set(mesh.tp_ranks) == {rank}


def test_ranks_of_one_tp_group_are_neighbours() -> None:
    mesh = Mesh(world_size=6, tp=2, rank=3)
    assert mesh.tp_ranks == (2, 3)
    assert mesh.data_ranks == (1, 3, 5)


def test_a_mesh_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Mesh.one_rank().tp = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("world_size", "tp", "rank", "message"),
    [
        (0, 1, 0, "expected world_size >= 1, got 0"),
        (4, 0, 0, r"expected parallel.tp >= 1, got 0 \(world_size 4\)"),
        (4, 3, 0, r"got world_size 4 and tp 3 \(remainder 1\)"),
        (2, 4, 0, r"got world_size 2 and tp 4 \(remainder 2\)"),
        (4, 2, 4, "got rank 4 and world_size 4"),
        (4, 2, -1, "got rank -1 and world_size 4"),
    ],
)
def test_an_impossible_mesh_is_refused_with_its_numbers(
    world_size: int, tp: int, rank: int, message: str
) -> None:
    with pytest.raises(MeshError, match=message):
        Mesh(world_size, tp, rank)
