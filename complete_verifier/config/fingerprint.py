"""A short name for the whole configuration, equal on two ranks exactly when their configs are."""

from __future__ import annotations

import hashlib
import json

from complete_verifier.config.callables import NamedCallable
from complete_verifier.config.keys import flatten
from complete_verifier.config.render import render_value
from complete_verifier.config.root import Config


def config_hash(config: Config) -> str:
    """SHA-256, in hex, of every key and value as canonical JSON.

    Values go through their YAML spelling where JSON has none (infinities), so the hash is the same
    on every machine and Python version.
    """
    plain = {key: _plain(value) for key, value in flatten(config).items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, (float, NamedCallable)):
        return render_value(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
