"""The exception of the configuration layer."""

from __future__ import annotations

from auto_LiRPA_patches.errors import VerifierError


class ConfigError(VerifierError):
    """A config file or a flag is wrong; the text says where, what was expected and what to do."""
