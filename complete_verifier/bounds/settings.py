"""The part of the config that bounds depend on, in the engine's terms."""

from __future__ import annotations

from dataclasses import dataclass

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from complete_verifier.config import Config

# Rows of a tile: high enough to keep most of a matrix product's speed, low enough that padding a
# ten-row specification costs little.
_TILE_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class BoundSettings:
    """What `verify_region` computes.

    Attributes:
        method: `solver.bound_prop_method`: ibp, crown-ibp, crown or alpha-crown.
        bounds: how backward passes are cut and what they bound.
        alpha: how α is optimised; iterations 0 leaves CROWN's slopes.
        threshold: margin a proof must exceed.
        relu_lower_slope: `solver.crown.activation_bound_option`.
        prune_after_crown: leave rows out of α-CROWN that no open clause uses.
    """

    method: str = "alpha-crown"
    bounds: BoundOptions = BoundOptions()
    alpha: AlphaOptions = AlphaOptions()
    threshold: float = 0.0
    relu_lower_slope: str = "adaptive"
    prune_after_crown: bool = True


def bound_settings(config: Config) -> BoundSettings:
    """The settings a config states; clock, memory and progress are added by the run."""
    general, solver, bab = config.general, config.solver, config.bab
    tiles = general.deterministic or bab.force_synchronous
    own = solver.init_bound_prop_method
    method: str = solver.bound_prop_method if own == "same" else own
    alpha = solver.alpha_crown
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
        ),
        threshold=float(bab.decision_thresh),
        relu_lower_slope=solver.crown.activation_bound_option,
        prune_after_crown=solver.prune_after_crown,
    )
