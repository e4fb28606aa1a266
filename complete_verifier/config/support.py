"""What this release does with each key: honours it, runs without it, or refuses it.

A key that is not honoured is never dropped in silence. One that changes only speed or tightness is
ignored: the run goes on, warns, and lists the key in its record. One that changes the question, or
what a verdict means, is refused before a model is loaded.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from complete_verifier.config.keys import KeySpec
from complete_verifier.config.kinds import Kind
from complete_verifier.config.option import Bounds, OptionInfo


class Status(enum.Enum):
    """What happens to a key that is given a value other than its default."""

    IMPLEMENTED = "implemented"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Support:
    """The row of one key, or of all keys of a section.

    `effect`: what the run does instead (ignored), or why it cannot go on (refused).
    `implemented`: values that are honoured although the row says otherwise.
    `refused`: values that are refused although the row says otherwise.
    `instead`: the value one is replaced with (an alias, or what is used in place of an ignored
    value), so that no other code meets it.
    `vnnlib_replaces`: has no effect where a VNN-LIB file states the property.
    """

    status: Status
    effect: str = ""
    implemented: tuple[Any, ...] = ()
    refused: tuple[Any, ...] = ()
    instead: Mapping[Any, Any] = field(default_factory=dict)
    vnnlib_replaces: bool = False


_OWN_BRANCHING = "it only steers branching; the run goes on without it"
_NO_MIP = "MIP solvers are not part of this release"
_NO_CUTS = "cutting planes are not part of this release"
_NO_CLIPPING = "domain clipping is not part of this release"
_NEAREST_METHOD = "the nearest method of this release is used"
_ONE_FORWARD = "forward bounds keep one symbol per input and error, as many as memory allows"
_NO_PICKLES = "pickled properties are not read in this release; give VNN-LIB files or .npy arrays"
NO_CALLABLES = "functions named in a config are not run in this release; remove the key"
_NO_INVPROP = "output constraints in inner bounds are not part of this release; remove the key"
_NO_GAMA = "only plain PGD is part of this release"
_OWN_LOADER = "the network is converted by our own loader and compared with onnxruntime"
_FASTER_ONLY = "it only affects speed; the run goes on without it"
_LESS_MEMORY_ONLY = "it only affects memory; the run goes on without it"
_LOOSER_ONLY = "it only affects how tight bounds are; the run goes on without it"
VNNLIB_RULES = "the VNN-LIB file states the property"

_DONE = Support(Status.IMPLEMENTED)


def _ignored(effect: str, *, implemented: tuple[Any, ...] = (), **instead: Any) -> Support:
    return Support(Status.IGNORED, effect, implemented, instead=instead)


def _refused(effect: str) -> Support:
    return Support(Status.REFUSED, effect)


def _without_vnnlib(effect: str = "", *, implemented: tuple[Any, ...] = ()) -> Support:
    """Honoured (or, with an effect, only the values listed) where no VNN-LIB file is given."""
    status = Status.REFUSED if effect else Status.IMPLEMENTED
    return Support(status, effect, implemented, vnnlib_replaces=True)


_METHODS = Support(
    Status.IGNORED,
    _NEAREST_METHOD,
    implemented=("alpha-crown", "crown", "crown-ibp", "ibp", "same", "forward", "forward+crown"),
    instead={
        "forward+backward": "forward+crown",
        "alpha-forward": "alpha-crown",
        "init-crown": "crown",
        "dynamic-forward": "forward",
        "dynamic-forward+crown": "forward+crown",
        "dynamic-forward+backward": "forward+crown",
    },
)

SUPPORT: Mapping[str, Support] = {
    # A name ending in a dot speaks for every key below it that has no row of its own.
    "general.device": _DONE,
    "general.seed": _DONE,
    "general.conv_mode": _DONE,
    "general.deterministic": _DONE,
    "general.double_fp": _DONE,
    "general.loss_reduction_func": _ignored(_LOOSER_ONLY),
    "general.sparse_alpha": _DONE,
    "general.sparse_interm": _DONE,
    "general.save_adv_example": _DONE,
    "general.verify_onnxruntime_output": _DONE,
    "general.eval_adv_example": _DONE,
    "general.onnx_adv_example": _DONE,
    "general.show_adv_example": _DONE,
    "general.precompile_jit": _ignored(_FASTER_ONLY),
    "general.reset_seed_after_precompile": _ignored("nothing is compiled before the run"),
    "general.prepare_only": _refused("a run always verifies in this release; remove the key"),
    "general.complete_verifier": Support(
        Status.IGNORED,
        _NO_MIP + "; branch and bound runs instead",
        implemented=("skip", "bab", "bab-refine", "auto"),
        refused=("Customized",),
        instead={"mip": "bab"},
    ),
    "general.enable_incomplete_verification": _DONE,
    "general.csv_name": _DONE,
    "general.results_file": _DONE,
    "general.root_path": _DONE,
    "general.graph_optimizer": _refused(NO_CALLABLES),
    "general.buffer_has_batchdim": _ignored(_OWN_LOADER),
    "general.save_output": _ignored("bounds are written by general.result_json instead"),
    "general.output_file": _ignored("bounds are written by general.result_json instead"),
    "general.return_optimized_model": _ignored("a run returns verdicts only"),
    "general.store_all_specs_on_cpu": _ignored(_LESS_MEMORY_ONLY),
    "general.adhoc_tuning": _ignored(_FASTER_ONLY),
    "general.result_json": _DONE,
    "general.measure_memory": _DONE,
    "model.name": _DONE,
    "model.path": _DONE,
    "model.onnx_path": _DONE,
    "model.onnx_path_prefix": _DONE,
    "model.cache_onnx_conversion": _ignored(_FASTER_ONLY),
    "model.onnx_quirks": _ignored(_OWN_LOADER),
    "model.input_shape": _DONE,
    "model.onnx_loader": _refused(NO_CALLABLES),
    "model.onnx_optimization_flags": _ignored(_OWN_LOADER),
    "model.onnx_vnnlib_joint_optimization_flags": _ignored(_LOOSER_ONLY),
    "model.check_optimized": _ignored(_OWN_LOADER),
    "model.flatten_final_output": _DONE,
    "model.optimize_graph": _refused(NO_CALLABLES),
    "model.with_jacobian": _refused("Jacobians are not part of this release; remove the key"),
    "model.bound_opts": _ignored(_LOOSER_ONLY),
    "data.start": _DONE,
    "data.end": _DONE,
    "data.select_instance": _DONE,
    "data.num_outputs": _without_vnnlib(),
    "data.mean": _without_vnnlib(),
    "data.std": _without_vnnlib(),
    "data.pkl_path": _refused(_NO_PICKLES),
    "data.dataset": _without_vnnlib(),
    "data.data_idx_file": _without_vnnlib(),
    "specification.type": _without_vnnlib(
        "only lp and box are part of this release", implemented=("lp", "box")
    ),
    "specification.robustness_type": _without_vnnlib(
        "only verified-acc, runnerup, clean-runnerup and all-positive are part of this release",
        implemented=("verified-acc", "runnerup", "clean-runnerup", "all-positive"),
    ),
    "specification.norm": _without_vnnlib(
        "only the norms 1, 2 and .inf are part of this release",
        implemented=(1.0, 2.0, float("inf")),
    ),
    "specification.epsilon": _without_vnnlib(),
    "specification.epsilon_min": _without_vnnlib("balls without a middle are not supported"),
    "specification.vnnlib_path": _DONE,
    "specification.vnnlib_path_prefix": _DONE,
    "specification.shrink_eps": _refused("it changes the input set of the property"),
    "specification.rhs_offset": _DONE,
    "solver.batch_size": _DONE,
    "solver.auto_enlarge_batch_size": _DONE,
    "solver.batched_crown_auto_enlarge_max_vram_ratio": _ignored(_LESS_MEMORY_ONLY),
    "solver.min_batch_size_ratio": _DONE,
    "solver.use_float64_in_last_iteration": _ignored(_LOOSER_ONLY),
    "solver.early_stop_patience": _DONE,
    "solver.start_save_best": _DONE,
    "solver.bound_prop_method": _METHODS,
    "solver.init_bound_prop_method": _METHODS,
    "solver.prune_after_crown": _DONE,
    "solver.optimize_disjuncts_separately": _ignored(_LOOSER_ONLY),
    "solver.build_batch_size": _ignored(_FASTER_ONLY),
    "solver.skip_with_refined_bound": _ignored(_FASTER_ONLY),
    "solver.forward_before_compute_bounds": _ignored(_FASTER_ONLY),
    "solver.crown.batch_size": _DONE,
    "solver.crown.max_crown_size": _ignored("every layer is bounded in full"),
    "solver.crown.activation_bound_option": _DONE,
    "solver.crown.compare_crown_with_ibp": _DONE,
    "solver.alpha-crown.alpha": _DONE,
    "solver.alpha-crown.lr_alpha": _DONE,
    "solver.alpha-crown.iteration": _DONE,
    "solver.alpha-crown.share_alphas": _ignored("each row keeps its own alpha"),
    "solver.alpha-crown.lr_decay": _DONE,
    "solver.alpha-crown.full_conv_alpha": _DONE,
    "solver.alpha-crown.max_coeff_mul": _ignored(_LOOSER_ONLY),
    "solver.alpha-crown.matmul_share_alphas": _ignored("each row keeps its own alpha"),
    "solver.alpha-crown.disable_optimization": _ignored(_FASTER_ONLY),
    "solver.alpha-crown.max_time": _DONE,
    "solver.alpha-crown.input_split_alpha_iteration": _DONE,
    "solver.alpha-crown.input_split_lr_alpha": _DONE,
    "solver.invprop.": _refused(_NO_INVPROP),
    "solver.beta-crown.lr_alpha": _DONE,
    "solver.beta-crown.lr_beta": _DONE,
    "solver.beta-crown.lr_decay": _DONE,
    "solver.beta-crown.iteration": _DONE,
    "solver.beta-crown.optimizer": _ignored("the optimiser is Adam"),
    "solver.beta-crown.enable_opt_interm_bounds": _DONE,
    "solver.beta-crown.all_node_split_LP": _DONE,  # an LP always decides leaves
    "solver.forward.": _ignored(_ONE_FORWARD),
    "solver.mip.refine_neuron_time_percentage": _DONE,
    "solver.mip.": _ignored(_NO_MIP),
    "bab.max_domains": _DONE,
    "bab.decision_thresh": _DONE,
    "bab.timeout": _DONE,
    "bab.timeout_scale": _DONE,
    "bab.max_iterations": _DONE,
    "bab.override_timeout": _DONE,
    "bab.pruning_in_iteration": _DONE,
    "bab.pruning_in_iteration_ratio": _DONE,
    "bab.sort_targets": _ignored("all targets are worked on together, in the order of bounds"),
    "bab.batched_domain_list": _ignored("subproblems are always kept in batches"),
    "bab.optimized_interm": _ignored(_LOOSER_ONLY),
    "bab.recompute_interm": _DONE,
    "bab.sort_domain_interval": _DONE,
    "bab.vanilla_crown": _DONE,
    "bab.tree_traversal": _DONE,
    "bab.hugetensor_allocator": _ignored(_LESS_MEMORY_ONLY),
    "bab.force_synchronous": _DONE,
    "bab.tile_size": _DONE,
    "bab.cut.": _ignored(_NO_CUTS),
    "bab.clip_n_verify.": _ignored(_NO_CLIPPING),
    "bab.branching.": _ignored(_OWN_BRANCHING),
    "bab.branching.method": Support(
        Status.IGNORED,
        _OWN_BRANCHING,
        implemented=(
            *("kfsb", "fsb", "kfsb-intercept-only", "babsr", "intercept", "random"),
            *("naive", "sb", "brute-force", "nonlinear"),
        ),
    ),
    "bab.branching.nonlinear_split.branching_point_method": _DONE,
    **{
        f"bab.branching.input_split.{name}": _DONE
        for name in (
            *("enable", "input_dim_threshold", "adv_check", "sb_margin_weight", "sb_sum"),
            *("sb_coeff_thresh", "bf_iters", "bf_batch_size"),
            *("ibp_enhancement", "compare_with_old_bounds"),
        )
    },
    "bab.branching.candidates": _DONE,
    "bab.branching.reduceop": Support(
        Status.IGNORED,
        _OWN_BRANCHING,
        implemented=("min", "max", "mean"),
        instead={"auto": "max"},
    ),
    "bab.branching.input_split.update_rhs_with_attack": _refused(
        "it moves the thresholds of the property; remove the key"
    ),
    "bab.attack.": _ignored("the tree tries points where bounds are attained, and steps from them"),
    "attack.general_attack": _ignored("there is one attack, for specifications of any form"),
    "attack.pgd_order": _ignored(
        "the attack runs before or after the bounds in this release",
        implemented=("before", "after", "skip"),
        middle="after",
        input_bab="after",
    ),
    "attack.pgd_steps": _DONE,
    "attack.pgd_restarts": _DONE,
    "attack.pgd_batch_size": _DONE,
    "attack.pgd_early_stop": _DONE,
    "attack.pgd_lr_decay": _DONE,
    "attack.pgd_alpha": _DONE,
    "attack.pgd_alpha_scale": _DONE,
    "attack.pgd_loss_mode": _DONE,
    "attack.pgd_restart_when_stuck": _ignored("points that stand still are always drawn anew"),
    "attack.enable_mip_attack": _ignored(_NO_MIP),
    "attack.adv_saver": _refused(NO_CALLABLES),
    "attack.adv_verifier": _refused(NO_CALLABLES),
    "attack.early_stop_condition": _refused(NO_CALLABLES),
    "attack.adv_example_finalizer": _refused(NO_CALLABLES),
    "attack.pgd_loss": _refused(NO_CALLABLES),
    "attack.cex_path": _DONE,
    "attack.attack_mode": _ignored(
        _NO_GAMA,
        implemented=("PGD", "diversed_PGD", "diverse_pgd"),
        diverse_pgd="diversed_PGD",
        diversed_GAMA_PGD="PGD",
        boundary="PGD",
    ),
    "attack.attack_tolerance": _refused("counterexamples are checked exactly; remove the key"),
    "attack.attack_func": _refused(NO_CALLABLES),
    "attack.gama_lambda": _ignored(_NO_GAMA),
    "attack.gama_decay": _ignored(_NO_GAMA),
    "attack.input_split.": _ignored(_OWN_BRANCHING),
    "attack.input_split_check_adv.": _ignored(_OWN_BRANCHING),
    "debug.view_model": _ignored("layers are not printed in this release"),
    "debug.save_minimal_config": _ignored("use --print_config"),
    "debug.save_minimal_config_omit_keys": _ignored("use --print_config"),
    "parallel.world_size": _DONE,
    "parallel.fsdp": _DONE,
    "parallel.tp": _DONE,
    "parallel.tp_intermediate": _DONE,
    "parallel.shard_specs": _DONE,
    "parallel.shard_domains": _DONE,
    "parallel.backend": _DONE,
    "parallel.timeout": _DONE,
    "parallel.fsdp_prefetch": _DONE,
    "parallel.fsdp_shared_memory": _DONE,
}


def _legacy(key: str) -> KeySpec:
    info = OptionInfo(flag="", help="", negated=False, bounds=Bounds(), expectation=None)
    return KeySpec(key, Kind(boolean=True), None, info)


LEGACY_KEYS: Mapping[str, KeySpec] = {
    key: _legacy(key)
    for key in (
        "bab.interm_transfer",
        "bab.get_upper_bound",
        "bab.cut.biccos.constraint_strengthening",
    )
}
"""Keys that published configs hold although the tool no longer reads them; they have no effect."""

LEGACY_SUPPORT = _ignored("the key is from an older release and has no effect")


@functools.cache
def support_of(key: str) -> Support:
    """The row that speaks for `key`: its own, or that of the nearest section above it.

    Raises: KeyError if no row does.
    """
    if key in LEGACY_KEYS:
        return LEGACY_SUPPORT
    if key in SUPPORT:
        return SUPPORT[key]
    section = key
    while section:
        section = section.rpartition(".")[0]
        if f"{section}." in SUPPORT:
            return SUPPORT[f"{section}."]
    raise KeyError(key)
