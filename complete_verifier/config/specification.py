"""Keys of the section `specification`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecificationConfig(Section):
    """The property: a VNN-LIB file, or a ball around images of a data set."""

    SECTION: ClassVar[str] = "specification"

    type: Literal["lp", "box", "bound"] = option(
        "lp", "--spec_type", "Input set: an Lp ball, a box, or bounds from the data loader."
    )
    robustness_type: Literal[
        "verified-acc", "runnerup", "clean-runnerup", "clean-acc", "specify-target", "all-positive"
    ] = option("verified-acc", "--robustness_type", "Labels that an image is verified against.")
    norm: float = option(float("inf"), "--norm", "Order of the Lp ball: 1, 2 or .inf.", at_least=1)
    epsilon: float | None = option(
        None, "--epsilon", "Radius of the Lp ball, before normalisation.", at_least=0
    )
    epsilon_min: float = option(0.0, "--epsilon_min", "Inner radius of the Lp ball.", at_least=0)
    vnnlib_path: str | None = option(
        None, "--vnnlib_path", "VNN-LIB file; it replaces the Lp ball."
    )
    vnnlib_path_prefix: str = option(
        "", "--vnnlib_path_prefix", "Text put before each VNN-LIB path of a batch."
    )
    shrink_eps: float | None = option(
        None, "--shrink_eps", "Factor that shrinks the input set of a VNN-LIB file."
    )
    rhs_offset: float | None = option(
        None, "--rhs_offset", "Number added to the right side of every output constraint."
    )
