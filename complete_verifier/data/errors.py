"""The exception of this package."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class DataError(VerifierError):
    """A data set is not there, or is not what it should be."""
