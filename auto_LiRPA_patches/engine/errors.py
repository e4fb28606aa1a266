"""The engine's own interruption."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class OutOfTimeError(VerifierError):
    """The clock ran out between two chunks of a backward pass; nothing was concluded."""
