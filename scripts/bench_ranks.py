"""Measure how much faster branch and bound is where ranks share its subproblems.

Usage: python scripts/bench_ranks.py ONNX VNNLIB [--ranks 1 2 4] [--repeats 3] ...

Other flags are those of bench_bab.py.

Every number of ranks starts from the same root, with one thread per rank. With --synchronous and
--rounds all do the same work. Without, a rank may take more of a small network's subproblems than
its share of a batch, and --rounds_by_ranks says how many rounds make about as much work.

What the machine itself gains from as many processes is measured beside it: by matrix products of
the size that a batch makes, which stay in a core's cache, and by copies, as many separate one-rank
runs at once. These share memory and caches but nothing else: no speed-up can be expected above
theirs.

Numbers of ranks take turns, --repeats times, since machines are faster in one minute than in the
next; the table shows each one's fastest turn, and the speed-ups of all turns beside it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from bench_bab import Case, arguments_of, open_case
from rank_processes import RankProcesses

from auto_LiRPA_patches.errors import VerifierError
from auto_LiRPA_patches.sharding.collectives import Communicator, Ranks
from complete_verifier.bab.partners import Partners
from complete_verifier.heap import keep_freed_memory

_CEILING_SECONDS = 3.0
# A process's first rounds find caches, allocator and code cold; neither run is to pay for that.
_WARM_UP_ROUNDS = 6
_ROWS, _WIDTH = 512, 256


@dataclass(frozen=True)
class Figures:
    """What one rank measured.

    Attributes:
        subproblems: of all ranks together.
        rounds, ending: of branch and bound.
        seconds, cpu_seconds: of this rank's branch and bound.
        products: matrix products per second, all ranks at it at once.
        copy_rate: subproblems per second of this rank's run on its own, all at it at once.
    """

    subproblems: int
    rounds: int
    ending: str
    seconds: float
    cpu_seconds: float
    products: float
    copy_rate: float

    @property
    def speed(self) -> float:
        """Subproblems per second of all ranks together, by this rank's clock."""
        return self.subproblems / max(self.seconds, 1e-9)


def measure(ranks: Ranks, options: argparse.Namespace, rounds: int | None) -> Figures:
    """Branch on the case of the command line together with the other ranks.

    Args:
        rounds: of all ranks together; None is `options.rounds`.

    Raises:
        VerifierError: bounds prove the property.
    """
    keep_freed_memory()
    case = _case_of(**vars(options))
    if case is None:
        raise VerifierError("bounds prove the property; there is nothing to branch on")
    partners = Partners(ranks.data, Communicator.single("weights"))
    case.run(_WARM_UP_ROUNDS)
    ranks.world.barrier()
    products = _products_per_second()
    ranks.world.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    outcome = case.run(options.rounds if rounds is None else rounds, partners)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    ranks.world.barrier()
    start = time.perf_counter()
    copy_rate = case.run(options.rounds).domains_visited / (time.perf_counter() - start)
    return Figures(
        subproblems=outcome.domains_visited,
        rounds=outcome.rounds,
        ending=outcome.ending.value,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        products=products,
        copy_rate=copy_rate,
    )


@functools.cache
def _case_of(**options: Any) -> Case | None:
    """Its root takes longer than the rounds that are measured."""
    return open_case(argparse.Namespace(**options))


def table(turns: Sequence[Sequence[list[Figures]]]) -> str:
    """One line per number of ranks; speed-ups are against the first.

    Args:
        turns: per turn and number of ranks, what each rank measured.
    """
    lines = [
        "ranks  subproblems  rounds  seconds  CPU s  per second  speed-up  copies  products  ending"
        "    speed-ups by turn"
    ]
    found = [max(own, key=_speed) for own in zip(*turns, strict=True)]
    first = found[0]
    for place, own in enumerate(found):
        speed, base = _speed(own), _speed(first)
        by_turn = [_speed(turn[place]) / _speed(turn[0]) for turn in turns]
        lines.append(
            f"{len(own):5}  {own[0].subproblems:11}  {own[0].rounds:6}  "
            f"{max(one.seconds for one in own):7.1f}  "
            f"{sum(one.cpu_seconds for one in own):5.1f}  {speed:10.0f}  {speed / base:8.2f}  "
            f"{_gain(turns, place, 'copy_rate'):6.2f}  {_gain(turns, place, 'products'):8.2f}  "
            f"{own[0].ending:<8}  {' '.join(f'{one:.2f}' for one in by_turn)}"
        )
    return "\n".join(lines)


def _speed(own: list[Figures]) -> float:
    return min(one.speed for one in own)


def _gain(turns: Sequence[Sequence[list[Figures]]], place: int, name: str) -> float:
    """The ranks' sum of a rate in its best turn, against that of the first number of ranks."""
    best = [max(sum(getattr(one, name) for one in turn[at]) for turn in turns) for at in (place, 0)]
    return float(best[0] / max(best[1], 1e-9))


def _products_per_second() -> float:
    left, right = torch.rand(_ROWS, _WIDTH), torch.rand(_WIDTH, _WIDTH)
    start, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < _CEILING_SECONDS:
        left @ right
        count += 1
    return count / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every number of ranks; exit code 1 if one of them fails."""
    parser = arguments_of()
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3, help="turns of each number of ranks")
    parser.add_argument(
        "--rounds_by_ranks", type=int, nargs="+", default=[], help="one per number of --ranks"
    )
    options = parser.parse_args(arguments)
    if len(options.rounds_by_ranks) not in (0, len(options.ranks)):
        parser.error("--rounds_by_ranks: expected one number for each of --ranks")
    rounds = dict(zip(options.ranks, options.rounds_by_ranks, strict=False))
    options.ranks = tuple(options.ranks)  # a case is remembered by its options
    options.rounds_by_ranks = tuple(options.rounds_by_ranks)
    try:
        with RankProcesses() as processes:
            turns = [
                [processes.run(measure, size, options, rounds.get(size)) for size in options.ranks]
                for _ in range(options.repeats)
            ]
    except RuntimeError as error:
        print(f"bench_ranks: error: {error}", file=sys.stderr)
        return 1
    print(table(turns))
    if options.json is not None:
        rows = [[[vars(one) for one in own] for own in turn] for turn in turns]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
