"""Print what this interpreter lacks of the project's requirements, one requirement a line.

Usage: python scripts/missing_packages.py [EXTRA ...] [--also REQUIREMENT]

Reads pyproject.toml beside this folder, so the list of requirements stands in one place only.
It must run on an interpreter that has nothing but pip: hence pip's own copies of the two parsers
where the standard library (before 3.11) or the environment has none.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

try:
    from packaging.requirements import Requirement
except ModuleNotFoundError:
    from pip._vendor.packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def required(extras: list[str]) -> list[str]:
    """Return the requirement strings of the package and of `extras`, as pyproject.toml has them."""
    with PYPROJECT.open("rb") as file:
        project = tomllib.load(file)["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return wanted


def missing(requirements: list[str]) -> list[str]:
    """Return those of `requirements` whose distribution is absent or has another version."""
    absent = []
    for text in requirements:
        requirement = Requirement(text)
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
