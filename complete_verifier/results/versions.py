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
    versions = {"python": platform.python_version()}
    for name in (_PROJECT, *_PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
