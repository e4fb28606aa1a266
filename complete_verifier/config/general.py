"""Keys of the section `general`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from complete_verifier.config.callables import NamedCallable
from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneralConfig(Section):
    """Device, reproducibility, the batch of instances, and where results go."""

    SECTION: ClassVar[str] = "general"

    device: Literal["cpu", "cuda"] = option(
        "cuda", "--device", "Device that computes; cuda becomes cpu where there is none."
    )
    seed: int = option(100, "--seed", "Seed of every random choice, the same on all ranks.")
    conv_mode: Literal["patches", "matrix"] = option(
        "patches", "--conv_mode", "Form of the coefficients of convolutions; bounds are the same."
    )
    deterministic: bool = option(
        False, "--deterministic", "Same bits on every run: deterministic kernels and row tiles."
    )
    double_fp: bool = option(False, "--double_fp", "Compute bounds in float64.")
    loss_reduction_func: str = option(
        "sum", "--loss_reduction_func", "How the bounds of a batch become one loss: sum or min."
    )
    sparse_alpha: bool = option(
        True, "--no_sparse_alpha", "Keep alpha for unstable neurons only.", negated=True
    )
    sparse_interm: bool = option(
        True, "--no_sparse_interm", "Bound unstable neurons only in inner layers.", negated=True
    )
    save_adv_example: bool = option(
        False, "--save_adv_example", "Write each counterexample to a file."
    )
    verify_onnxruntime_output: bool = option(
        False,
        "--verify_onnxruntime_output",
        "Replay counterexamples with onnxruntime; this is always done.",
    )
    eval_adv_example: bool = option(
        False, "--eval_adv_example", "Check a saved counterexample again; this is always done."
    )
    onnx_adv_example: bool = option(
        False, "--onnx_adv_example", "Use onnxruntime's outputs in saved counterexamples."
    )
    show_adv_example: bool = option(False, "--show_adv_example", "Print each counterexample.")
    precompile_jit: bool = option(
        False, "--precompile_jit", "Compile kernels before the first instance."
    )
    reset_seed_after_precompile: bool = option(
        False, "--reset_seed_after_precompile", "Seed again once kernels are compiled."
    )
    prepare_only: bool = option(
        False, "--prepare_only", "Convert and cache the inputs, verify nothing."
    )
    complete_verifier: (
        Literal["bab", "mip", "bab-refine", "skip", "auto", "Customized"] | NamedCallable
    ) = option("bab", "--complete_verifier", "What runs on instances that bounds alone leave open.")
    enable_incomplete_verification: bool = option(
        True, "--no_incomplete", "Bound each instance before branching.", negated=True
    )
    csv_name: str | None = option(
        None, "--csv_name", 'CSV file that lists the instances of a batch; "" turns it off.'
    )
    results_file: str = option("out.txt", "--results_file", "File for one verdict per instance.")
    root_path: str = option("", "--root_path", "Folder that the paths of a batch are relative to.")
    graph_optimizer: NamedCallable = option(
        NamedCallable("default_optimizer", "custom_graph_optimizer"),
        "--graph_optimizer",
        "Function that rewrites the graph before bounds are computed.",
    )
    buffer_has_batchdim: bool = option(
        False, "--buffer_has_batchdim", "Constants of the ONNX graph have a batch dimension."
    )
    save_output: bool = option(False, "--save_output", "Pickle the bounds of the run.")
    output_file: str = option("out.pkl", "--output_file", "File of general.save_output.")
    return_optimized_model: bool = option(
        False, "--return_optimized_model", "Return the bounded model once bounds are optimised."
    )
    store_all_specs_on_cpu: bool = option(
        False, "--store_all_specs_on_cpu", "Keep specifications in host memory until used."
    )
    adhoc_tuning: str | None = option(
        None, "--adhoc_tuning", "Name of a rule that changes settings per instance."
    )
    result_json: str | None = option(
        None, "--result_json", "File for one JSON record per instance."
    )
    measure_memory: bool = option(
        False, "--measure_memory", "Count live and peak tensor bytes on each rank."
    )
