"""Ranks that read different things must not work on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auto_LiRPA_patches.errors import RankMismatchError
from complete_verifier.queries import Query
from complete_verifier.reading import read_instance
from complete_verifier.specification import SpecificationError
from tests.regression.user_runs import vnnlib


class Networks:
    """A network of two inputs and outputs, without a file."""

    num_inputs = num_outputs = 2

    def network(self, onnx: Path) -> Networks:
        return self


class World:
    """Collects what this rank says; as the other rank it says `other`."""

    def __init__(self, other: str | None = None) -> None:
        self.said: list[str] = []
        self._other = other

    def agree_same(self, what: str, value: str) -> None:
        self.said.append(value)
        if self._other is not None and self._other != value:
            raise RankMismatchError(f"{what}: {value} and {self._other}")


def read(folder: Path, text: str, world: Any) -> None:
    path = folder / "p.vnnlib"
    path.write_text(text)
    networks: Any = Networks()
    read_instance(Query(0, Path("net.onnx"), path, 10.0), networks, world)


def test_every_number_of_a_property_is_compared(tmp_path: Path) -> None:
    variants = [
        vnnlib([0, 0], [1, 1], 2, "(<= Y_0 0.5)"),
        vnnlib([0, 0], [1, 1.5], 2, "(<= Y_0 0.5)"),
        vnnlib([0, 0], [1, 1], 2, "(<= Y_0 0.75)"),
        vnnlib([0, 0], [1, 1], 2, "(<= Y_1 0.5)"),
        vnnlib([0, 0], [1, 1], 2, "(< Y_0 0.5)"),
    ]
    world = World()
    for text in [*variants, variants[0]]:
        read(tmp_path, text, world)
    assert len(set(world.said)) == len(variants) and world.said[0] == world.said[-1]
    with pytest.raises(RankMismatchError):
        read(tmp_path, variants[1], World(other=world.said[0]))


def test_a_rank_that_fails_alone_learns_it(tmp_path: Path) -> None:
    other_network = vnnlib([0], [1], 2, "(<= Y_0 0.5)")
    with pytest.raises(RankMismatchError):
        read(tmp_path, other_network, World(other="a property with SHA-256 00"))
    with pytest.raises(SpecificationError, match="1 inputs"):
        read(tmp_path, other_network, World())


def test_the_numbers_fit_the_network(tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="3 outputs"):
        read(tmp_path, vnnlib([0, 0], [1, 1], 3, "(<= Y_0 0.5)"), World())
