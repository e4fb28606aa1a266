"""Another source's weights, and some more that live as long as this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from auto_LiRPA_patches.sharding.weights import ParameterShare, WeightHandle, WeightSource


class AddedWeights(WeightSource):
    """Hands out a source's weights under their handles, and those registered here.

    What is registered here is held in the manner of that source: whole, or a slice per rank.
    """

    def __init__(self, base: WeightSource) -> None:
        """Add nothing yet to `base`."""
        super().__init__()
        self._base = base
        self._own = base.empty_like()
        self._added: frozenset[WeightHandle] = frozenset()

    def register(
        self,
        name: str,
        tensor: Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> WeightHandle:
        """Take over a tensor that the source does not know; `name` must differ from its names."""
        handle = self._own.register(name, tensor, dtype=dtype, device=device)
        self._added |= {handle}
        return handle

    def gather(self, handle: WeightHandle) -> Tensor:
        """The whole weight, from where it was registered."""
        return (self._own if handle in self._added else self._base).gather(handle)

    def expect(self, handles: Sequence[WeightHandle]) -> None:
        """Tell each source of its own."""
        self._own.expect([handle for handle in handles if handle in self._added])
        self._base.expect([handle for handle in handles if handle not in self._added])

    @contextmanager
    def gathering_once(self) -> Iterator[None]:
        """Of both."""
        with self._base.gathering_once(), self._own.gathering_once():
            yield

    def may_part(self) -> bool:
        """Whether ranks can with both."""
        own = self._own.may_part()
        return self._base.may_part() and own

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Of both."""
        with self._base.apart(), self._own.apart():
            yield

    def settle(self) -> None:
        """Both."""
        self._base.settle()
        self._own.settle()

    def explain(self, error: Exception) -> None:
        """By either."""
        self._base.explain(error)
        self._own.explain(error)

    def empty_like(self) -> WeightSource:
        """As the source."""
        return self._base.empty_like()

    def share(self) -> tuple[ParameterShare, ...]:
        """Of the source's and of those added, in this order."""
        return (*self._base.share(), *self._own.share())

    @property
    def handles(self) -> tuple[WeightHandle, ...]:
        """The source's, then those added."""
        return (*self._base.handles, *self._own.handles)

    @property
    def digest(self) -> str:
        """Of both, equal on ranks that agree."""
        return self._base.digest + self._own.digest

    def check_agreement(self) -> None:
        """Check both."""
        self._base.check_agreement()
        self._own.check_agreement()

    def held(self) -> tuple[Tensor, ...]:
        """What this rank holds of both."""
        return (*self._base.held(), *self._own.held())

    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        raise TypeError("weights are kept by the source they were added to")

    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        raise TypeError("weights are kept by the source they were added to")
