"""Properties: what is asked of a network, exactly as it was stated."""

from complete_verifier.specification.clause import Clause
from complete_verifier.specification.errors import SpecificationError
from complete_verifier.specification.instances import Instance, read_instances
from complete_verifier.specification.region import Float32Box, Region, group_regions
from complete_verifier.specification.robustness import Robustness, Statement
from complete_verifier.specification.specification import Specification
from complete_verifier.specification.vnnlib import parse_vnnlib, read_vnnlib

__all__ = [
    "Clause",
    "Float32Box",
    "Instance",
    "Region",
    "Robustness",
    "Specification",
    "SpecificationError",
    "Statement",
    "group_regions",
    "parse_vnnlib",
    "read_instances",
    "read_vnnlib",
]
