"""Hand out the network's weights, one operator call at a time.

`WeightSource` is the only way an operator reaches a weight. Where the weight lives - whole on this
rank, or as a slice per rank - is known to the implementation alone, so bound propagation is written
once for both.

Life of a weight: `register` once while the graph is built, `gather` at every use, and drop the
result right after. Nobody may write to a gathered tensor: it may be the only copy.
"""

from __future__ import annotations

import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

_MemoryPlace = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class WeightHandle:
    """Stands for one registered tensor; cheap to keep where the tensor itself must not be kept."""

    index: int
    """Order of registration, from 0; the same on every rank."""
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __hash__(self) -> int:
        return self.index  # the rest is compared; it is asked for at every gather


@dataclass(frozen=True)
class ParameterShare:
    """How much of one parameter lives on this rank."""

    name: str
    shape: tuple[int, ...]
    full_numel: int
    """Elements of the whole parameter."""
    local_numel: int
    """Elements held by this rank, padding included."""
    local_bytes: int
    """Bytes held by this rank, padding included."""


class WeightSource(ABC):
    """Registry of weights with one way in and one way out."""

    def __init__(self) -> None:
        self._handles: list[WeightHandle] = []
        self._names: set[str] = set()
        self._places: dict[
            _MemoryPlace, tuple[weakref.ref[torch.UntypedStorage], WeightHandle]
        ] = {}
        self._signatures: list[str] = []
        self._digest = ""

    # -- the interface ---------------------------------------------------------------------

    copies = False
    """Whether `register` copies what it keeps; else it may keep the tensor that it is given."""

    def register(
        self,
        name: str,
        tensor: Tensor,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> WeightHandle:
        """Take over `tensor` ([*shape], any dtype, replicated) and return its handle.

        It is kept as `dtype` on `device`, those of the tensor unless given; a source that keeps a
        part converts and moves no more than that.

        The same view of the same memory registered again, unchanged, gives the first handle back
        (tied weights exist once). Gradients are not tracked: the tensor counts as a constant.
        With several ranks, all register equal tensors in the same order.

        Raises:
            ValueError: if `name` already stands for another tensor.
        """
        tensor = tensor.detach()
        place = _memory_place(tensor)
        known = self._find(place, tensor)
        if known is not None:
            return known
        if name in self._names:
            raise ValueError(
                f"weight {name!r}: already registered with another tensor, now got shape "
                f"{tuple(tensor.shape)}. Give each weight its own name."
            )
        handle = WeightHandle(len(self._handles), name, tuple(tensor.shape), dtype or tensor.dtype)
        self._keep(handle, tensor, device or tensor.device)
        self._handles.append(handle)
        self._names.add(name)
        self._places[place] = (weakref.ref(tensor.untyped_storage()), handle)
        # Strides belong to it: slices of two layouts of one matrix do not fit together.
        signature = f"{name} {list(tensor.shape)} {handle.dtype} {list(dense_strides(tensor))}"
        signature += self._content(tensor)
        self._signatures.append(signature)
        self._digest = hashlib.sha256((self._digest + signature).encode()).hexdigest()
        return handle

    @abstractmethod
    def gather(self, handle: WeightHandle) -> Tensor:
        """Return the whole weight ([*shape], replicated), bit for bit as registered, without grad.

        Strides are those of the registered tensor where it filled its memory without gaps or
        overlaps (so a transposed matrix stays one, and products keep their bits), else contiguous.
        The caller drops the tensor after the operator call and never writes to it.
        """

    def part(self, handle: WeightHandle, axis: int, start: int, size: int) -> Tensor:
        """Return places ``start .. start + size`` of the weight along `axis`, replicated.

        A view of `gather`'s result; a source that can make a part without the whole does.
        """
        return self.gather(handle).narrow(axis, start, size)

    @abstractmethod
    def share(self) -> tuple[ParameterShare, ...]:
        """Return what this rank holds of each parameter, by handle index."""

    @abstractmethod
    def empty_like(self) -> WeightSource:
        """Return a source without weights that will hold its own as this one does."""

    def expect(self, handles: Sequence[WeightHandle]) -> None:  # noqa: B027  nothing is far away
        """Hear which weights the next operator calls will gather, in order, before they do.

        A hint alone: what is gathered, and what it returns, does not depend on it. All ranks give
        the same hints.
        """

    def gathering_once(self) -> AbstractContextManager[None]:
        """For one operator call that uses a weight several times: it is gathered once.

        Within the block `gather` gives out the same tensor again, which lives until its end.
        """
        return nullcontext()

    def may_part(self) -> bool:
        """Whether ranks can use weights each in its own order, see `apart`. A collective."""
        return True

    def apart(self) -> AbstractContextManager[None]:
        """For work that differs from rank to rank: within, no other rank takes part in a gather.

        All ranks enter together, and nothing is registered within.

        Raises:
            ValueError: this source's ranks cannot, see `may_part`.
        """
        return nullcontext()

    def settle(self) -> None:  # noqa: B027  nothing is on its way
        """Let go of whatever was fetched ahead of its use."""

    def explain(self, error: Exception) -> None:  # noqa: B027  nothing is shared
        """Say why this rank failed, if the reason is what other ranks gathered meanwhile.

        Raises:
            RankMismatchError: from `error`: this rank and another gathered different weights.
        """

    # -- derived ---------------------------------------------------------------------------

    @property
    def handles(self) -> tuple[WeightHandle, ...]:
        """All handles, by index."""
        return tuple(self._handles)

    @property
    def local_bytes(self) -> int:
        """Bytes of weights held by this rank, padding included."""
        return sum(part.local_bytes for part in self.share())

    @property
    def full_bytes(self) -> int:
        """Bytes that all weights take when held whole."""
        return sum(
            part.full_numel * handle.dtype.itemsize
            for part, handle in zip(self.share(), self.handles, strict=True)
        )

    @property
    def digest(self) -> str:
        """Hex hash of all signatures in order; equal on ranks that registered the same."""
        return self._digest

    def check_agreement(self) -> None:  # noqa: B027  nothing to agree on where nothing is shared
        """Check that all ranks that share the weights registered the same ones.

        Raises:
            RankMismatchError: on every rank, naming the first difference.
        """

    @abstractmethod
    def held(self) -> tuple[Tensor, ...]:
        """Return what this rank stores, whole parameters or slices, for counting."""

    # -- for implementations ---------------------------------------------------------------

    @abstractmethod
    def _keep(self, handle: WeightHandle, tensor: Tensor, device: torch.device) -> None:
        """Store what this rank needs of `tensor` as `handle.dtype`, in the order of `index`."""

    @abstractmethod
    def _still_holds(self, handle: WeightHandle, tensor: Tensor) -> bool:
        """Return whether what was stored for `handle` still equals this rank's part of `tensor`."""

    def _content(self, tensor: Tensor) -> str:
        """What to add to the signature of `tensor` so that ranks can compare its values."""
        return ""

    def _check_mine(self, handle: WeightHandle) -> None:
        known = self._handles[handle.index] if handle.index < len(self._handles) else None
        if known is not handle and known != handle:
            raise ValueError(
                f"weight {handle.name!r} (index {handle.index}): expected a handle given out by "
                f"this source, which has {known} there. Use the source that registered it."
            )

    def _find(self, place: _MemoryPlace, tensor: Tensor) -> WeightHandle | None:
        """Return the handle of this very memory, unless it was freed or written to since."""
        if place not in self._places:
            return None
        storage, handle = self._places[place]
        # A freed storage's address is soon used again: without the weak reference another
        # parameter could be taken for this one, and its bounds would be of the wrong network.
        if storage() is not tensor.untyped_storage() or not self._still_holds(handle, tensor):
            return None
        return handle


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides `gather` gives back: the tensor's own if it has no gaps or overlaps."""
    if tensor.numel() == 0:
        return contiguous_strides(tensor.shape)
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return contiguous_strides(tensor.shape)
        expected *= size
    return tuple(tensor.stride())


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor of `shape`."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return all elements flat ([numel]) in the order of `dense_strides`; a view if dense."""
    if dense_strides(tensor) == tensor.stride():
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two contiguous tensors of one dtype hold the same bytes (NaN payloads too)."""
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def _memory_place(tensor: Tensor) -> _MemoryPlace:
    return (
        tensor.untyped_storage().data_ptr(),
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
    )
