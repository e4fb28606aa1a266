"""Data sets: labelled inputs that properties are stated around."""

from complete_verifier.data.errors import DataError
from complete_verifier.data.examples import Examples
from complete_verifier.data.load import load_examples

__all__ = ["DataError", "Examples", "load_examples"]
