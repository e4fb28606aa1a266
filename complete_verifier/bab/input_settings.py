"""How branch and bound on input boxes splits, bounds and attacks."""

from __future__ import annotations

from dataclasses import dataclass

from auto_LiRPA_patches.engine.options import AlphaOptions

HEURISTICS = ("naive", "sb", "brute-force")
BOUNDING = ("crown", "alpha-crown", "crown-ibp", "ibp", "forward", "forward+crown")


@dataclass(frozen=True, kw_only=True)
class InputSplitSettings:
    """Manner of input splitting (`bab.branching.input_split.*`, `solver.*`).

    Attributes:
        heuristic: `bab.branching.method`. naive = the input that is widest relative to the
            region; sb = the input whose halving promises most for the bound (smart branching);
            brute-force = bound the halves of every input and keep the best pair. The default: on
            ACAS Xu it never needs many times the best one's boxes, which both others do.
        bounding: `solver.bound_prop_method`: forward (affine forms), forward+crown (the
            functionals backwards as well), alpha-crown (forward+crown first, then α-CROWN on what
            that leaves open, as long as it pays), crown, crown-ibp (interval bounds of inner
            neurons), or ibp. Measured, ACAS Xu net 1_1 property 6, CPU seconds: forward+crown 4,
            crown 8.
        alpha: how α is optimised on boxes CROWN leaves open; `iterations` is
            `solver.alpha-crown.input_split_alpha_iteration`. Used with alpha-crown only.
        ibp_enhancement: also bound the functionals from the last layer's interval and keep the
            better bound.
        compare_with_old_bounds: never report less than the parent's margin.
        adv_check: subproblems visited before attacks start; -1 is never.
        sb_margin_weight: weight of a constraint's present margin in the choice of the constraint
            that smart branching improves.
        sb_sum: add up what a split promises for all open constraints instead.
        sb_coeff_thresh: smallest coefficient smart branching reckons with.
        bf_period: brute force is asked at every `bf_period`-th depth of the tree, and its answer
            followed between; 1 asks always.
        bf_iters: rounds that use brute force; smart branching afterwards.
        bf_batch_size: children bounded at a time by brute force.
    """

    heuristic: str = "brute-force"
    bounding: str = "crown"
    alpha: AlphaOptions = AlphaOptions(iterations=2)
    ibp_enhancement: bool = True
    compare_with_old_bounds: bool = True
    adv_check: int = 0
    sb_margin_weight: float = 1.0
    sb_sum: bool = False
    sb_coeff_thresh: float = 0.001
    bf_period: int = 4
    bf_iters: float = 1e9
    bf_batch_size: int = 100_000

    @property
    def forward(self) -> bool:
        """Whether inner neurons are bounded by one pass from the inputs upwards."""
        return self.bounding in ("forward", "forward+crown", "alpha-crown")

    @property
    def alpha_steps(self) -> int:
        """Steps of α-CROWN on a box; 0 unless `bounding` asks for it."""
        return self.alpha.iterations if self.bounding == "alpha-crown" else 0

    @property
    def backward(self) -> bool:
        """Whether functionals are bounded by a pass from the output downwards."""
        return self.bounding not in ("ibp", "forward")

    def __post_init__(self) -> None:
        if self.bf_period < 1 or self.bf_batch_size < 1:
            raise ValueError(
                "input splitting: expected bf_period and bf_batch_size >= 1, "
                f"got {self.bf_period} and {self.bf_batch_size}."
            )
        for name, value, choices in (
            ("heuristic", self.heuristic, HEURISTICS),
            ("bounding", self.bounding, BOUNDING),
        ):
            if value not in choices:
                raise ValueError(
                    f"input splitting: expected {name} to be one of {', '.join(choices)}, "
                    f"got {value!r}."
                )
