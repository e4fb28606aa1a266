"""The ranks that share one region's subproblems."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from auto_LiRPA_patches.engine.out_of_memory import ran_out_of_memory
from auto_LiRPA_patches.errors import RankMismatchError, VerifierError
from auto_LiRPA_patches.sharding.collectives import Communicator
from auto_LiRPA_patches.sharding.weights import WeightSource
from auto_LiRPA_patches.sharding.whole_weights import held_whole

logger = logging.getLogger(__name__)


class PartnerError(VerifierError):
    """Branch and bound failed on one rank; all ranks end it, and nothing is proven."""


@dataclass(frozen=True)
class Partners:
    """Who holds subproblems, and who has to compute in step.

    Attributes:
        pool: ranks that each own a part of the open subproblems. They meet between rounds.
        weights: ranks that each hold a slice of the weights, so that every use of a layer is a
            collective: within a round they take every decision on which the sequence of layers
            depends alike, and a rank without work of its own computes on a stand-in. One rank
            where weights are whole, or ranks read each other's slices (`WeightSource.apart`); then
            nobody waits for anybody within a round.
        layers_split: ranks outside of `pool` and `weights` use the layers together with this one,
            and follow it call by call: those that share wide layers (tp), or weights (fsdp) where
            every rank follows the whole tree.
    """

    pool: Communicator
    weights: Communicator
    layers_split: bool = False

    @staticmethod
    def alone() -> Partners:
        """One rank that owns every subproblem."""
        return Partners(Communicator.single("pool"), Communicator.single("weights"))

    @property
    def in_step(self) -> bool:
        """Whether ranks use the layers of the network together."""
        return self.weights.size > 1

    def apart(self, weights: WeightSource) -> AbstractContextManager[None]:
        """For rounds in which ranks of a pool use the layers each for its own subproblems.

        Weights that can be had in common only are held whole meanwhile. All ranks enter together.
        """
        if self.in_step or self.pool.size == 1:
            return nullcontext()
        return weights.apart() if weights.may_part() else held_whole(weights)

    def share(self, count: int) -> int:
        """This rank's part of `count`, as even as can be; the first ranks get one more."""
        size = self.pool.size
        return count // size + int(self.pool.rank < count % size)

    def each(self, count: int) -> int:
        """How many every rank has of `count` that all have together, rounded up."""
        return -(-count // self.pool.size)

    def attempt(self, work: Callable[[], None]) -> Exception | None:
        """Do a rank's own work; what goes wrong is for all ranks to learn (`agree_on_failure`).

        With one rank it is raised as it is, but for want of memory. Where ranks compute in step
        the others wait in a collective that this one will not reach, and the run ends.
        """
        try:
            work()
        except RankMismatchError:
            raise
        except Exception as error:
            starved = ran_out_of_memory(error)
            if self.pool.size == 1:
                if starved and not self.layers_split:
                    return error
                raise
            if self.in_step or self.layers_split:
                raise RankMismatchError(
                    f"branch and bound: rank {self.pool.rank} failed while others compute in step "
                    f"with it: {type(error).__name__}: {error}"
                ) from error
            if not (starved or isinstance(error, VerifierError)):
                logger.exception("branch and bound: rank %d: internal error", self.pool.rank)
            return error
        return None

    def raise_together(self, failure: Exception | None) -> None:
        """Raise on all ranks what went wrong on some. A collective, called where some did.

        Raises:
            PartnerError: with the text of every rank that failed.
        """
        text = None
        if failure is not None:
            text = f"{type(failure).__name__}: {failure}"
            text = str(failure) if isinstance(failure, VerifierError) else f"internal error: {text}"
        heard = self.pool.all_gather_object(text)
        listing = "; ".join(f"rank {rank}: {said}" for rank, said in enumerate(heard) if said)
        raise PartnerError(f"branch and bound failed on {listing}") from failure
