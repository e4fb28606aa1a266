"""The exception of this package."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class ResultError(VerifierError):
    """A result file cannot be written, or does not hold what its format says."""
