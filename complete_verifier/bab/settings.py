"""The parts of the config that branch and bound depends on."""

from __future__ import annotations

from dataclasses import replace

from auto_LiRPA_patches.engine.graph import Graph
from auto_LiRPA_patches.engine.options import AlphaOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from complete_verifier.bab.context import BabSettings
from complete_verifier.bab.input_settings import BOUNDING, HEURISTICS, InputSplitSettings
from complete_verifier.bab.refinement import (
    RefinePass,
    RefineSettings,
    can_refine,
    fully_connected,
)
from complete_verifier.config import Config

_METHODS = ("kfsb", "fsb", "kfsb-intercept-only", "babsr", "intercept", "random")


def bab_settings(config: Config) -> BabSettings:
    """The settings a resolved config states for branching on activations.

    `bab.branching.method` may name a heuristic of another kind of branching (`sb`, `naive`); then
    kfsb serves here.
    """
    solver, bab = config.solver, config.bab
    beta, branching = solver.beta_crown, bab.branching
    iterations, interval = int(bab.max_iterations), int(bab.sort_domain_interval)
    reduceop = branching.reduceop
    own_beta = BetaOptions(
        iterations=0 if bab.vanilla_crown else beta.iteration,
        alpha_rate=beta.lr_alpha,
        beta_rate=beta.lr_beta,
        decay=beta.lr_decay,
        prune_ratio=bab.pruning_in_iteration_ratio if bab.pruning_in_iteration else None,
    )
    return BabSettings(
        batch_size=max(1, int(solver.batch_size)),
        enlarge=solver.auto_enlarge_batch_size,
        min_batch_ratio=solver.min_batch_size_ratio,
        sort_interval=interval if interval > 0 else None,
        worst_first=bab.tree_traversal == "breadth_first",
        max_domains=float(bab.max_domains),
        max_iterations=iterations if iterations >= 0 else None,
        beta=own_beta,
        inner=_inner(config, own_beta),
        method=branching.method if branching.method in _METHODS else "kfsb",
        point_method=branching.nonlinear_split.branching_point_method,
        candidates=max(1, int(branching.candidates)),
        reduceop=reduceop if reduceop in ("min", "max", "mean") else "max",
        synchronous=bab.force_synchronous,
        tile_size=bab.tile_size,
        threshold=float(bab.decision_thresh),
        seed=config.general.seed,
    )


def refine_passes(config: Config, graph: Graph) -> tuple[RefinePass, ...]:
    """What `complete_verifier: bab-refine` does between runs of branch and bound.

    `auto` does so too for fully connected ReLU networks, which have few neurons that are cheap to
    bound. A first run of seconds spares instances that are decided then. Where runs must repeat
    their bits the clock says nothing, so refinement comes first, and once.
    """
    wanted = config.general.complete_verifier
    if wanted != "bab-refine" and not (wanted == "auto" and fully_connected(graph)):
        return ()
    if not can_refine(graph):
        return ()
    beta = bab_settings(config).beta
    once = RefineSettings(
        beta=replace(beta, iterations=_REFINE_ITERATIONS),
        batch_size=max(2, int(config.solver.batch_size)),
        share=min(1.0, float(config.solver.mip.refine_neuron_time_percentage)),
        synchronous=config.bab.force_synchronous,
    )
    if once.synchronous:
        return (RefinePass(0.0, once),)
    return (RefinePass(0.05, once), RefinePass(0.3, replace(once, rounds=_MORE_ROUNDS)))


_REFINE_ITERATIONS = 20
_MORE_ROUNDS = 80


def _inner(config: Config, beta: BetaOptions) -> BetaOptions | None:
    """How subproblems bound inner neurons: optimised, by one pass, or not at all (None)."""
    if config.solver.beta_crown.enable_opt_interm_bounds:
        return beta
    return replace(beta, iterations=0) if config.bab.recompute_interm else None


def splits_inputs(config: Config, num_inputs: int, *, activations_too: bool) -> bool:
    """Whether input boxes are split rather than activations.

    `bab.branching.input_split.enable` says so; `complete_verifier: auto` does for networks with
    few inputs; and where activations cannot be split, inputs are the only choice.
    """
    split = config.bab.branching.input_split
    few = num_inputs <= split.input_dim_threshold
    if split.enable or (config.general.complete_verifier == "auto" and few):
        return True
    return few and not activations_too


def input_split_settings(config: Config) -> InputSplitSettings:
    """The settings a resolved config states for splitting inputs.

    `bab.branching.method` may name a heuristic for activations; then brute force serves here.
    """
    alpha, branching = config.solver.alpha_crown, config.bab.branching
    split = branching.input_split
    method, bounding = str(branching.method), str(config.solver.bound_prop_method)
    return InputSplitSettings(
        heuristic=method if method in HEURISTICS else "brute-force",
        bounding=bounding if bounding in BOUNDING else "crown",
        alpha=AlphaOptions(
            iterations=alpha.input_split_alpha_iteration if alpha.alpha else 0,
            learning_rate=alpha.input_split_lr_alpha,
            decay=alpha.lr_decay,
            early_stop=not config.bab.force_synchronous,
        ),
        ibp_enhancement=split.ibp_enhancement,
        compare_with_old_bounds=split.compare_with_old_bounds,
        adv_check=split.adv_check,
        sb_margin_weight=split.sb_margin_weight,
        sb_sum=split.sb_sum,
        sb_coeff_thresh=split.sb_coeff_thresh,
        bf_iters=split.bf_iters,
        bf_batch_size=split.bf_batch_size,
    )
