"""Configuration: frozen dataclasses read from YAML and flags. Imports neither torch nor numpy."""

from complete_verifier.config.automatic import automatic
from complete_verifier.config.errors import ConfigError
from complete_verifier.config.fingerprint import config_hash
from complete_verifier.config.loader import (
    LoadedConfig,
    describe_config,
    load_config,
    load_given_config,
)
from complete_verifier.config.paths import InputPaths
from complete_verifier.config.resolve import Facts, Resolved, resolve
from complete_verifier.config.root import Config

__all__ = [
    "Config",
    "ConfigError",
    "Facts",
    "InputPaths",
    "LoadedConfig",
    "Resolved",
    "automatic",
    "config_hash",
    "describe_config",
    "load_config",
    "load_given_config",
    "resolve",
]
