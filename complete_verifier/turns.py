"""Let the ranks of a host do something one after the other, and go on only if all could."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from auto_LiRPA_patches.errors import VerifierError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.launch import Launch

Made = TypeVar("Made")


@dataclass(frozen=True)
class Turns:
    """Whose turn it is: a network being loaded takes the host memory of two, and no more.

    Attributes:
        world: all ranks.
        turn: when this rank's turn is.
        count: turns in all, the same on every rank.
    """

    world: Communicator
    turn: int = 0
    count: int = 1

    @classmethod
    def on_each_host(cls, world: Communicator, launch: Launch) -> Turns:
        """One rank at a time on every host. A collective."""
        return cls(world, launch.local_rank, world.agree_max(launch.local_world_size))

    def take(self, what: str, work: Callable[[], Made]) -> Made:
        """Do `work` when it is this rank's turn; returns when all ranks have done it.

        Args:
            what: names the work in errors.
            work: no collective; all ranks do the same.

        Raises:
            VerifierError: the work failed alike on all ranks.
            RanksDisagreeError: it failed on some of them, or in different ways.
        """
        made: Made | None = None
        failure: VerifierError | None = None
        for number in range(self.count):
            if number == self.turn:
                try:
                    made = work()
                except VerifierError as error:
                    failure = error
            if self.count > 1:
                self.world.barrier()
        self.world.agree_same(what, "done" if failure is None else str(failure))
        if failure is not None:
            raise failure
        return made  # type: ignore[return-value]  # no failure: it was made
