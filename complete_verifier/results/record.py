"""What is recorded about one instance; the JSON schema of `general.result_json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from complete_verifier.results.json_number import json_number
from complete_verifier.results.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Wall-clock seconds per phase; 0 for a phase that did not run."""

    load: float = 0.0
    attack: float = 0.0
    initial_bounds: float = 0.0
    bab: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Lower bounds of margins, one per constraint of the property; empty where not computed.

    A constraint that states the unsafe set is excluded where its bound is above 0.
    """

    crown: tuple[float, ...] = ()
    alpha_crown: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BranchAndBound:
    """How far branch and bound came; all 0 where it did not run."""

    rounds: int = 0
    domains_visited: int = 0
    domains_left: int = 0
    lower_bound: float | None = None
    """Worst lower bound over the subproblems left; None where it did not run."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of tensors per rank, in rank order; empty without `general.measure_memory`."""

    baseline_bytes: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    baseline_by_kind: tuple[Mapping[str, int], ...] = ()
    """What `baseline_bytes` are spent on, by the names of `MemoryKind`."""
    peak_by_kind: tuple[Mapping[str, int], ...] = ()
    """The same of `peak_bytes`, at the moment of the peak."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Bytes of the network's parameters: of one full copy, and held by each rank."""

    full_bytes: int = 0
    bytes_per_rank: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the work was spread, after every `auto` was resolved."""

    world_size: int = 1
    data: int = 1
    tp: int = 1
    fsdp: bool = False
    shard_specs: bool = False
    shard_domains: bool = False
    parameters: Parameters = field(default_factory=Parameters)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The result of one instance."""

    onnx: str
    vnnlib: str
    verdict: Verdict
    reason: str = ""
    """Why the verdict is what it is, in a few words; the message of an `error`."""

    seconds: Seconds = field(default_factory=Seconds)
    bounds: Bounds = field(default_factory=Bounds)
    bab: BranchAndBound = field(default_factory=BranchAndBound)
    memory: Memory = field(default_factory=Memory)
    parallel: Parallel = field(default_factory=Parallel)
    counterexample: str | None = None
    """File the counterexample was saved to; None without one."""

    events: tuple[str, ...] = ()
    """What happened on some rank that the verdict does not show: memory that ran out."""

    ignored: tuple[str, ...] = ()
    """Config keys that were set and had no effect."""

    config_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values; numbers that JSON lacks become strings."""
        return {
            "onnx": self.onnx,
            "vnnlib": self.vnnlib,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "seconds": _plain(self.seconds),
            "bounds": _plain(self.bounds),
            "bab": _plain(self.bab),
            "memory": _plain(self.memory),
            "parallel": {**_plain(self.parallel), "parameters": _plain(self.parallel.parameters)},
            "counterexample": self.counterexample,
            "events": list(self.events),
            "ignored": list(self.ignored),
            "config_hash": self.config_hash,
            "versions": dict(self.versions),
        }


def _plain(part: object) -> dict[str, Any]:
    """The fields of one part, in their order."""
    return {name: _json_value(value) for name, value in vars(part).items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _json_value(item) for name, item in value.items()}
    # An int keeps its type; numpy's float64 is a float.
    return json_number(value) if isinstance(value, float) else value
