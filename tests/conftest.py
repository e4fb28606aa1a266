"""For every test: auto_LiRPA is left patched, or not, as the test found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from auto_LiRPA_patches import registry


@pytest.fixture(autouse=True)
def patches_as_found() -> Iterator[None]:
    """A run inside the test process patches auto_LiRPA for good, as it does for a user.

    The next test must not notice: `test_apply_replaces_every_copy_in_auto_lirpa` once failed after
    a test of the memory meter had run the program.
    """
    was_patched = bool(registry.applied())
    yield
    if registry.applied() and not was_patched:
        registry.revert()
