"""The part of the config that branch and bound depends on."""

from __future__ import annotations

from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.bab.context import BabSettings
from complete_verifier.config import Config

_METHODS = ("kfsb", "fsb", "kfsb-intercept-only", "babsr", "intercept", "random")


def bab_settings(config: Config) -> BabSettings:
    """The settings a resolved config states for branching on activations.

    `bab.branching.method` may name a heuristic of another kind of branching (`sb`, `naive`); then
    kfsb serves here.
    """
    solver, bab = config.solver, config.bab
    beta, branching = solver.beta_crown, bab.branching
    iterations = int(bab.max_iterations)
    reduceop = branching.reduceop
    return BabSettings(
        batch_size=max(1, int(solver.batch_size)),
        worst_first=bab.tree_traversal == "breadth_first",
        max_domains=float(bab.max_domains),
        max_iterations=iterations if iterations >= 0 else None,
        beta=BetaOptions(
            iterations=beta.iteration,
            alpha_rate=beta.lr_alpha,
            beta_rate=beta.lr_beta,
            decay=beta.lr_decay,
        ),
        method=branching.method if branching.method in _METHODS else "kfsb",
        candidates=max(1, int(branching.candidates)),
        reduceop=reduceop if reduceop in ("min", "max") else "max",
        synchronous=bab.force_synchronous,
        threshold=float(bab.decision_thresh),
        seed=config.general.seed,
    )
