"""The versions a result was made with."""

from __future__ import annotations

import platform
from importlib import metadata

_PROJECT = "alpha-beta-crown-sharded"
_PACKAGES = ("torch", "auto_LiRPA", "onnx", "onnx2pytorch", "onnxruntime", "numpy")


def collect_versions() -> dict[str, str]:
    """Return name -> version of Python, this project and what it computes with.

    Read from the installed packages' metadata, without importing them. A package without metadata
    is "not installed"; so is this project when it runs from a checkout.
    """
    names = (_PROJECT, *_PACKAGES)
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
