"""Parameter names of a `BoundedModule`, on a torch that passes `remove_duplicate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


def named_members(
    self: Any,
    get_members_fn: Callable[[nn.Module], Any],
    prefix: str = "",
    recurse: bool = True,
    remove_duplicate: bool = True,
) -> Iterator[tuple[str, Any]]:
    """Yields (name in the original module, member); replaces `BoundedModule._named_members`."""
    members = nn.Module._named_members(self, get_members_fn, prefix, recurse, remove_duplicate)
    for name, member in members:
        yield self.node_name_map.get(name, name), member
