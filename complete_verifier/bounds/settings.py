"""The part of the config that bounds depend on, in the engine's terms."""

from __future__ import annotations

from dataclasses import dataclass

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from complete_verifier.config import Config

# Rows of a tile: high enough to keep most of a matrix product's speed, low enough that padding a
# ten-row specification costs little.
_TILE_ROWS = 64
# Where branching follows, α stops when it no longer pays: on cifar_base_kw img8194 twenty steps
# instead of a hundred leave 1 214 subproblems instead of 1 308, and take 1.9 s instead of 8.9.
_FINAL_FIRST = 20
_SATURATION = 0.05


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """What `verify_region` computes.

    Attributes:
        method: `solver.bound_prop_method`: ibp, crown-ibp, crown, alpha-crown,
            forward (inner bounds and functionals in one pass from the inputs) or forward+crown
            (functionals backwards as well).
        bounds: how backward passes are cut and what they bound.
        alpha: how α is optimised; iterations 0 leaves CROWN's slopes.
        threshold: margin a proof must exceed.
        relu_lower_slope: `solver.crown.activation_bound_option`.
        prune_after_crown: leave rows out of α-CROWN that no open clause uses.
        starves_together: whether all ranks hear it when bounds do not fit into one's memory; else
            the error is raised, and ends the run.
    """

    method: str = "alpha-crown"
    bounds: BoundOptions = BoundOptions()
    alpha: AlphaOptions = AlphaOptions()
    threshold: float = 0.0
    relu_lower_slope: str = "adaptive"
    prune_after_crown: bool = True
    starves_together: bool = True


def bound_settings(config: Config) -> BoundSettings:
    """The settings a config states; clock, memory and progress are added by the run."""
    general, solver, bab = config.general, config.solver, config.bab
    tiles = general.deterministic or bab.force_synchronous
    own = solver.init_bound_prop_method
    method: str = solver.bound_prop_method if own == "same" else own
    alpha = solver.alpha_crown
    branches = general.complete_verifier != "skip" and not bab.force_synchronous
    return BoundSettings(
        method=method,
        bounds=BoundOptions(
            chunk_rows=max(1, int(solver.crown.batch_size)),
            tile_rows=_TILE_ROWS if tiles else None,
            sparse_rows=general.sparse_interm,
            sparse_alpha=general.sparse_alpha,
            intermediate="ibp" if method == "crown-ibp" else "crown",
        ),
        alpha=AlphaOptions(
            iterations=alpha.iteration if alpha.alpha else 0,
            learning_rate=alpha.lr_alpha,
            decay=alpha.lr_decay,
            patience=solver.early_stop_patience,
            early_stop=not bab.force_synchronous,
            final_first=_FINAL_FIRST if branches else 0,
            saturation=_SATURATION if branches else 0.0,
            keep_inner=bab.recompute_interm or solver.beta_crown.enable_opt_interm_bounds,
        ),
        threshold=float(bab.decision_thresh),
        relu_lower_slope=solver.crown.activation_bound_option,
        prune_after_crown=solver.prune_after_crown,
    )
