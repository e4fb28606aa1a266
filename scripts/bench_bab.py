"""Measure branch and bound on one instance: how fast, and where the time and the memory go.

Usage: python scripts/bench_bab.py ONNX VNNLIB [--batch 512] [--seconds 60] [--json FILE] ...

The first region that bounds leave open (with --inputs all of these together) is branched on several
times: once for speed, lower bound and phases, then for a few rounds each without and with torch's
profiler, and with the memory meter, which both slow it down. The attack that a run starts with is
left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from phase_timer import ACTIVATION_PHASES, INPUT_PHASES, PhaseTimer
from torch.profiler import ProfilerActivity, profile
from touched_memory import touch_memory

from auto_LiRPA_patches.engine.options import AlphaOptions, BoundOptions
from auto_LiRPA_patches.engine.subproblems import BetaOptions
from auto_LiRPA_patches.errors import VerifierError
from auto_LiRPA_patches.sharding.memory_meter import MemoryMeter
from auto_LiRPA_patches.sharding.one_rank_weights import OneRankWeights
from complete_verifier.attack.counterexample import Counterexample, confirm
from complete_verifier.bab.activation import activation_branch_and_bound
from complete_verifier.bab.context import BabContext, BabSettings
from complete_verifier.bab.input_settings import HEURISTICS, InputSplitSettings
from complete_verifier.bab.input_split import input_branch_and_bound
from complete_verifier.bab.outcome import BabOutcome
from complete_verifier.bab.partners import Partners
from complete_verifier.bab.region_group import RegionGroup
from complete_verifier.bounds.incomplete import RegionBounds, verify_region
from complete_verifier.bounds.settings import BoundSettings
from complete_verifier.heap import keep_freed_memory
from complete_verifier.model.network import Network, load_network
from complete_verifier.model.replay import run_onnx
from complete_verifier.specification import Region, read_vnnlib

_MEMORY_BYTES = 2 << 30
_TOUCHED_BYTES = 7 << 28  # more than what 20 rounds leave behind in a profile
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "addmv_", "dot")
)


@dataclass(frozen=True)
class Case:
    """What bounds left open, and how it is branched on."""

    options: argparse.Namespace
    network: Network
    regions: tuple[Region, ...]
    bounds: RegionBounds
    root_seconds: float

    def run(self, rounds: int | None, partners: Partners | None = None) -> BabOutcome:
        """Branch and bound from the root, for so many rounds at most; alone or with other ranks."""
        options = self.options
        start = time.monotonic()
        context = BabContext(
            network=self.network,
            region=self.regions[0],
            bounds=BoundOptions(
                memory_bytes=_MEMORY_BYTES,
                out_of_time=lambda ahead: time.monotonic() - start + ahead > options.seconds,
            ),
            confirm=self._confirm,
            partners=Partners.alone() if partners is None else partners,
        )
        settings = replace(_settings(options), max_iterations=rounds)
        if options.inputs:
            manner = InputSplitSettings()
            if options.method in HEURISTICS:
                manner = replace(manner, heuristic=options.method)
            return input_branch_and_bound(context, manner, settings, RegionGroup.of(self.regions))
        if self.bounds.root is None:
            raise VerifierError("bounds gave no root to branch from; try --inputs.")
        return activation_branch_and_bound(self.bounds.root, context, settings)

    def _confirm(self, region: Region, point: Any) -> Counterexample | None:
        return confirm(self.options.onnx, region, point, run_onnx)


def _settings(options: argparse.Namespace) -> BabSettings:
    return BabSettings(
        batch_size=options.batch,
        beta=BetaOptions(
            iterations=options.iterations,
            alpha_rate=options.lr_alpha,
            beta_rate=options.lr_beta,
        ),
        method=options.method if options.method not in HEURISTICS else "kfsb",
        candidates=options.candidates,
        reduceop=options.reduceop,
        synchronous=options.synchronous,
        tile_size=options.tile_size,
    )


def open_case(options: argparse.Namespace) -> Case | None:
    """What bounds leave open: a region, or all of them; None where they prove the property."""
    network = load_network(options.onnx, OneRankWeights(), check=False)
    settings = BoundSettings(
        bounds=BoundOptions(memory_bytes=_MEMORY_BYTES),
        alpha=AlphaOptions(iterations=options.root_iterations),
    )
    start = time.perf_counter()
    left: list[Region] = []
    first: RegionBounds | None = None
    for region in read_vnnlib(options.vnnlib).regions:
        bounds = verify_region(network, region, settings)
        if bounds.proven:
            continue
        left.append(region)
        first = first or bounds
        if not options.inputs:
            break
    if first is None:
        return None
    return Case(options, network, tuple(left), first, time.perf_counter() - start)


def measure(case: Case) -> dict[str, Any]:
    """All figures of one case, as JSON holds them."""
    options = case.options
    timer = PhaseTimer()
    cpu = time.process_time()
    with timer.watch(INPUT_PHASES if options.inputs else ACTIVATION_PHASES):
        outcome = case.run(options.rounds)
    cpu = time.process_time() - cpu
    seconds = sum(timer.seconds.values())
    short = max(1, min(options.short_rounds, outcome.rounds))
    products = profile_products(lambda: case.run(short))
    peak = measure_memory(lambda: case.run(short))
    margins = case.bounds.alpha_crown or case.bounds.crown
    settings = {k: v for k, v in vars(options).items() if k not in ("onnx", "vnnlib", "json")}
    return {
        "onnx": str(options.onnx),
        "vnnlib": str(options.vnnlib),
        "settings": settings,
        "torch": torch.__version__,
        "root_lower_bound": min(margins) if margins else None,
        "ending": outcome.ending.value,
        "rounds": outcome.rounds,
        "subproblems": outcome.domains_visited,
        "subproblems_left": outcome.domains_left,
        "lower_bound": _finite(outcome.lower_bound),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "subproblems_per_second": outcome.domains_visited / max(seconds, 1e-9),
        "subproblems_per_cpu_second": outcome.domains_visited / max(cpu, 1e-9),
        "phase_seconds": {"root bounds": case.root_seconds, **timer.seconds},
        "pool_bytes": timer.pool_bytes,
        "short_rounds": short,
        "products": products,
        "peak_bytes": peak,
    }


def profile_products(work: Callable[[], object]) -> dict[str, float]:
    """How much of `work` is matrix products and convolutions, by torch's profiler.

    The wall time they are a share of is that of the same work without the profiler.
    """
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    touch_memory(_TOUCHED_BYTES)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    events = profiler.key_averages()
    operators = sum(event.self_cpu_time_total for event in events) / 1e6
    own = sum(e.self_cpu_time_total for e in events if e.key in _PRODUCTS or "conv" in e.key) / 1e6
    return {
        "seconds": own,
        "operator_seconds": operators,
        "share_of_operators": own / max(operators, 1e-9),
        "wall_seconds": seconds,
        "share_of_wall": own / max(seconds, 1e-9),
    }


def measure_memory(work: Callable[[], object]) -> int:
    """Most bytes of tensors alive at a time that `work` made; network and root are not counted."""
    with MemoryMeter() as meter:
        work()
    return meter.peak_bytes


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    lower, root = figures["lower_bound"], figures["root_lower_bound"]
    products, total = figures["products"], max(figures["seconds"], 1e-9)
    ending = f"{figures['ending']} after {figures['rounds']} rounds, {figures['seconds']:.1f} s"
    lines = [
        ("ending", ending),
        ("subproblems", f"{figures['subproblems']} visited, {figures['subproblems_left']} left"),
        ("per second", f"{figures['subproblems_per_second']:.0f}"),
        ("per CPU second", f"{figures['subproblems_per_cpu_second']:.0f}"),
        ("lower bound", f"{_number(lower)} (root {_number(root)})"),
        ("matrix products", f"{products['share_of_operators']:.0%} of operators' time"),
        ("", f"{products['share_of_wall']:.0%} of wall time"),
        ("peak memory", f"{figures['peak_bytes'] / 2**20:.1f} MiB in a short run"),
        ("largest pool", f"{figures['pool_bytes'] / 2**20:.1f} MiB"),
    ]
    for phase, seconds in figures["phase_seconds"].items():
        share = "" if phase == "root bounds" else f" {seconds / total:6.1%}"
        lines.append((f"  {phase}", f"{seconds:8.2f} s{share}"))
    return "\n".join(f"{name:<18}{value}" for name, value in lines)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _finite(value: float) -> float | None:
    """JSON has no infinity; nothing left open has no worst bound."""
    return value if abs(value) != float("inf") else None


def arguments_of() -> argparse.ArgumentParser:
    """The command line; other measurements of branch and bound add to it."""
    parser = argparse.ArgumentParser(description="Measure branch and bound on one instance.")
    parser.add_argument("onnx", type=Path)
    parser.add_argument("vnnlib", type=Path)
    parser.add_argument("--batch", type=int, default=512, help="subproblems per round")
    parser.add_argument("--iterations", type=int, default=20, help="steps on α and β")
    parser.add_argument("--method", default="kfsb", help="bab.branching.method")
    parser.add_argument("--candidates", type=int, default=5, help="neurons kfsb and fsb try")
    parser.add_argument("--reduceop", choices=("min", "max"), default="max")
    parser.add_argument("--lr_alpha", type=float, default=0.01)
    parser.add_argument("--lr_beta", type=float, default=0.05)
    parser.add_argument("--root_iterations", type=int, default=100, help="α steps at the root")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each run")
    parser.add_argument("--rounds", type=int, help="limit of the measured run")
    parser.add_argument("--short_rounds", type=int, default=20, help="of the profile and the meter")
    parser.add_argument("--synchronous", action="store_true", help="bab.force_synchronous")
    parser.add_argument("--tile_size", type=int, default=128, help="bab.tile_size")
    parser.add_argument("--inputs", action="store_true", help="split inputs, not activations")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the instance of the command line; exit code 1 if it cannot be measured."""
    options = arguments_of().parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    try:
        case = open_case(options)
        if case is None:
            print("bounds prove the property; there is nothing to branch on", file=sys.stderr)
            return 1
        figures = measure(case)
    except VerifierError as error:
        print(f"bench_bab: error: {error}", file=sys.stderr)
        return 1
    print(table(figures))
    if options.json is not None:
        text = json.dumps(figures, indent=2, allow_nan=False, default=str)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
