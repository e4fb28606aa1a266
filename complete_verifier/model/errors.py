"""The error of a network that cannot be loaded as what its file says."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class ModelError(VerifierError):
    """An ONNX file is missing, malformed or unsupported, or was not loaded as what it says."""
