"""When ranks that share boxes look for counterexamples does not depend on how many they are."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from auto_LiRPA_patches.engine.options import BoundOptions
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_attack import InputAttack
from complete_verifier.bab.input_pool import Boxes
from complete_verifier.bab.input_settings import InputSplitSettings
from complete_verifier.bab.input_split import _Search, input_branch_and_bound
from complete_verifier.bab.partners import Partners
from tests.distributed.ranks import RankPool
from tests.distributed.shared_search import boxes
from tests.unit.bounds.region_cases import network_of

pytestmark = pytest.mark.distributed


def rounds_with_walks(ranks: Ranks) -> list[int]:
    """In which rounds this rank moves points; none is ever confirmed."""
    module, where = boxes()
    context = BabContext(
        network=network_of(module, (4,)),
        region=where,
        bounds=BoundOptions(),
        confirm=lambda *_: None,
        partners=Partners(ranks.data, Communicator.single("weights")),
    )
    found: list[int] = []
    attack = _Search._attack

    def noting(self: _Search, still: object, stuck: object, rounds: int) -> None:
        def walk(_: InputAttack, boxes: Boxes) -> None:
            found.append(rounds)

        with patch.object(InputAttack, "walk", walk):
            attack(self, still, stuck, rounds)  # type: ignore[arg-type]

    settings = BabSettings(batch_size=128, max_iterations=12, synchronous=True)
    with patch.object(_Search, "_attack", noting):
        input_branch_and_bound(context, InputSplitSettings(), settings)
    return found


def test_points_are_moved_in_the_same_rounds_on_any_number_of_ranks(rank_pool: RankPool) -> None:
    alone = rounds_with_walks(Ranks.alone())
    assert alone
    for size in (2, 3, 4):
        # A rank without boxes in a round has nothing to move.
        found = rank_pool.run(rounds_with_walks, size)
        assert sorted(set().union(*found)) == alone
