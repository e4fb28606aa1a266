"""Shim for tools that look for setup.py; every fact about the package stands in pyproject.toml."""

from setuptools import setup

setup()
