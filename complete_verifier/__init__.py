"""The application floor: from a config, a network and a property to verdicts.

`verify`, `Verifier`, `Specification`, `Result`, `Verdict` and `Config` are the Python interface.
They are fetched at first use: reading a config imports this package, and must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from complete_verifier.api import Result, Verifier, verify
    from complete_verifier.config import Config
    from complete_verifier.results.verdict import Verdict
    from complete_verifier.specification import Specification

__all__ = ["Config", "Result", "Specification", "Verdict", "Verifier", "verify"]

_HOMES = {
    "Config": "complete_verifier.config",
    "Result": "complete_verifier.api",
    "Specification": "complete_verifier.specification",
    "Verdict": "complete_verifier.results.verdict",
    "Verifier": "complete_verifier.api",
    "verify": "complete_verifier.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
