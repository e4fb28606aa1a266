"""Print what this interpreter lacks of the project's requirements, one requirement a line.

Usage: python scripts/missing_packages.py [EXTRA ...] [--also REQUIREMENT]

Reads pyproject.toml beside this folder, so the list of requirements stands in one place only.
It must run on an interpreter that has nothing but pip: hence pip's own copies of the two parsers
where the standard library (before 3.11) or the environment has none.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def first_module(*names: str) -> ModuleType:
    """Import and return the first of `names` that this interpreter has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            return import_module(name)
    raise ModuleNotFoundError(f"this Python has none of {', '.join(names)}; install pip into it")


def required(extras: list[str]) -> list[str]:
    """Return the requirement strings of the package and of `extras`, as pyproject.toml has them."""
    toml = first_module("tomllib", "pip._vendor.tomli")
    with PYPROJECT.open("rb") as file:
        project = toml.load(file)["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


def missing(requirements: list[str]) -> list[str]:
    """Return those of `requirements` whose distribution is absent or has another version."""
    parser = first_module("packaging.requirements", "pip._vendor.packaging.requirements")
    absent = []
    for text in requirements:
        requirement = parser.Requirement(text)
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            absent.append(text)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            absent.append(f"{text} (found {found})")
    return absent


def main() -> int:
    """Print the missing requirements; return 0 if there is none, else 1."""
    parser = argparse.ArgumentParser(description="Print what this interpreter lacks.")
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml to check as well")
    parser.add_argument("--also", action="append", default=[], help="one more requirement")
    arguments = parser.parse_args()
    absent = missing(required(arguments.extras) + arguments.also)
    print("\n".join(absent), end="\n" if absent else "")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
