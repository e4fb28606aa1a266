"""Keys of the section `parallel`: what is spread over the ranks that torchrun started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from complete_verifier.config.option import Section, option


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig(Section):
    """Each mode shards one axis: weights, rows, subproblems or neurons."""

    SECTION: ClassVar[str] = "parallel"

    world_size: int | None = option(
        None, "--world_size", "Ranks expected; null takes what torchrun started.", at_least=1
    )
    fsdp: bool = option(
        False, "--fsdp", "Each rank holds an equal part of every weight; bounds do not change."
    )
    tp: int | bool = option(
        1, "--tp", "Ranks that share the neurons of a wide layer; true takes all.", at_least=1
    )
    tp_intermediate: Literal["exact", "ibp"] = option(
        "exact", "--tp_intermediate", "Bounds inside a tensor-parallel zone: exact or looser ibp."
    )
    shard_specs: bool | Literal["auto"] = option(
        "auto", "--shard_specs", "Spread the rows being bounded over the ranks."
    )
    shard_domains: bool | Literal["auto"] = option(
        "auto", "--shard_domains", "Spread the subproblems of branch and bound over the ranks."
    )
    backend: Literal["auto", "nccl", "gloo"] = option(
        "auto", "--backend", "Collectives: auto is nccl on CUDA and gloo on the CPU."
    )
    timeout: float = option(
        600.0,
        "--parallel_timeout",
        "Seconds a collective may take before the run fails.",
        above=0,
    )
    fsdp_prefetch: bool = option(
        True, "--fsdp_prefetch", "Gather the next layer while the current one computes."
    )
    fsdp_shared_memory: bool = option(
        True,
        "--fsdp_shared_memory",
        "Read the weights of ranks of the same host from their memory instead of sending them.",
    )
