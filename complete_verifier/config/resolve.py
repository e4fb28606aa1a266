"""Settles every `auto`: a pure function of the config and of what the machine offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from complete_verifier.config.errors import ConfigError
from complete_verifier.config.keys import with_values
from complete_verifier.config.root import Config


@dataclass(frozen=True, slots=True)
class Facts:
    """What `resolve` needs to know besides the config.

    `num_ranks`: processes started by torchrun, 1 without it.
    `num_inputs`: inputs of the network, None before it is loaded.
    """

    cuda_available: bool
    num_ranks: int = 1
    num_inputs: int | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value that was settled, and why it is what it is."""

    key: str
    value: Any
    reason: str


def resolve(
    config: Config, facts: Facts, origins: Mapping[str, str] | None = None
) -> tuple[Config, tuple[Resolved, ...]]:
    """Replace every `auto` with the value used; the result holds none that a run reads.

    `origins` says which keys were given and where, so that a device that was asked for by name is
    not exchanged for another.
    Raises: ConfigError if the config asks for ranks or a device that are not there.
    """
    given = origins or {}
    _check_world_size(config, facts, given)
    device = _device(config, facts, given)
    notes = [
        *device,
        *_backend(config, device[0].value if device else config.general.device, given),
        *_sharding(config, facts),
        *_init_method(config),
        *_tensor_parallel(config, facts, given),
    ]
    return with_values(config, {note.key: note.value for note in notes}), tuple(notes)


def _check_world_size(config: Config, facts: Facts, given: Mapping[str, str]) -> None:
    expected = config.parallel.world_size
    if expected is not None and expected != facts.num_ranks:
        raise ConfigError(
            f"parallel.world_size: expected {expected} ranks, got {facts.num_ranks}"
            f"{_where('parallel.world_size', given)}. Start them with torchrun --nproc_per_node "
            f"{expected}, or remove the key to take what is started."
        )


def _device(config: Config, facts: Facts, given: Mapping[str, str]) -> list[Resolved]:
    if config.general.device == "cpu" or facts.cuda_available:
        return []
    if "general.device" in given:
        raise ConfigError(
            f"general.device: expected a CUDA device, got none on this machine"
            f"{_where('general.device', given)}. Use --device cpu."
        )
    return [Resolved("general.device", "cpu", "the default is cuda, but no CUDA device is here")]


def _backend(config: Config, device: str, given: Mapping[str, str]) -> list[Resolved]:
    backend = config.parallel.backend
    if backend == "auto":
        value = "nccl" if device == "cuda" else "gloo"
        return [Resolved("parallel.backend", value, f"the ranks compute on {device}")]
    if backend == "nccl" and device != "cuda":
        raise ConfigError(
            f"parallel.backend: nccl needs CUDA, but the device is {device}"
            f"{_where('parallel.backend', given)}. Use --backend gloo."
        )
    return []


def _tensor_parallel(config: Config, facts: Facts, given: Mapping[str, str]) -> list[Resolved]:
    tp, degree = config.parallel.tp, _degree(config, facts)
    if facts.num_ranks % degree:
        raise ConfigError(
            f"parallel.tp: expected a divisor of the {facts.num_ranks} rank(s) that are started, "
            f"got {degree}{_where('parallel.tp', given)}. Start a multiple of {degree} ranks with "
            "torchrun, or choose a tp that divides them."
        )
    notes = []
    if isinstance(tp, bool):
        notes.append(Resolved("parallel.tp", degree, f"{facts.num_ranks} rank(s) are started"))
    solver = config.solver
    first = solver.init_bound_prop_method
    methods = {
        "solver.bound_prop_method": solver.bound_prop_method,
        "solver.init_bound_prop_method": solver.bound_prop_method if first == "same" else first,
    }
    why = "tensor parallelism has backward bounds only"
    notes += [
        Resolved(key, "crown", why)
        for key, method in methods.items()
        if degree > 1 and method.startswith("forward")
    ]
    return notes


def _degree(config: Config, facts: Facts) -> int:
    """Ranks that share a layer's neurons."""
    tp = config.parallel.tp
    return (facts.num_ranks if tp else 1) if isinstance(tp, bool) else tp


def _sharding(config: Config, facts: Facts) -> list[Resolved]:
    """`shard_specs` and `shard_domains`: on where the data axis has several ranks."""
    data = facts.num_ranks // _degree(config, facts)
    shared = {
        "parallel.shard_specs": (config.parallel.shard_specs, "rows"),
        "parallel.shard_domains": (config.parallel.shard_domains, "subproblems"),
    }
    return [
        Resolved(key, data > 1, f"{data} rank(s) can share the {what}")
        for key, (value, what) in shared.items()
        if value == "auto"
    ]


def _init_method(config: Config) -> list[Resolved]:
    if config.solver.init_bound_prop_method != "same":
        return []
    method = config.solver.bound_prop_method
    return [Resolved("solver.init_bound_prop_method", method, "same as solver.bound_prop_method")]


def _where(key: str, given: Mapping[str, str]) -> str:
    return f" ({given[key]})" if key in given else ""
