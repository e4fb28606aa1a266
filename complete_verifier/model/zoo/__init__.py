"""PyTorch networks that published configs name, by their published layer sizes."""

from complete_verifier.model.zoo.registry import Architecture, architecture, architecture_names

__all__ = ["Architecture", "architecture", "architecture_names"]
