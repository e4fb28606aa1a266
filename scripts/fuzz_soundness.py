"""Decide random small networks with the whole verifier and compare with the exact answer.

Usage: python scripts/fuzz_soundness.py N [--seed S] [--jobs J]

ReLU networks are compared with the optimum of a mixed-integer program, sigmoid and tanh networks
with a dense grid. A `sat` must come with an input in the box whose float32 outputs violate the
property, compared exactly. Answers are not judged where the smallest margin lies within 1e-5,
relative to the numbers it is a difference of, of zero: there rounding decides.

Prints counts; a wrong answer with all that is needed to see it again, and exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnxruntime
import torch
from fuzz_cases import Box, Case, make_case
from onnx_graph import save_onnx

from complete_verifier.abcrown import main as verify
from complete_verifier.attack.save import read_counterexample

BAND = 1e-5
"""Smallest margins closer to zero than this, relative to `Case.scale`, are not judged."""

_TROUBLE = ("error", "no answer")


class Judgement(Enum):
    """What an answer is worth."""

    RIGHT = "right"
    OPEN = "open"
    NOT_JUDGED = "not judged"
    FAILED = "failed"
    """The verifier ended in an error: no false claim, but a fault."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Result:
    """One case, decided and judged; `why` says what contradicts."""

    seed: int
    kind: str
    verdict: str
    judgement: Judgement
    why: str
    least: tuple[float, float]
    seconds: float
    flags: tuple[str, ...]

    def __str__(self) -> str:
        low, high = self.least
        return (
            f"seed {self.seed} ({self.kind}): {self.verdict} is {self.judgement.value}: "
            f"{self.why}\n"
            f"  smallest margin in [{low:.9g}, {high:.9g}] (violated if <= 0)\n"
            f"  flags: {' '.join(self.flags)}\n"
            f"  again: python scripts/fuzz_soundness.py 1 --seed {self.seed} --keep FOLDER"
        )


def run(case: Case, keep: Path | None = None) -> Result:
    """Decide and judge a case.

    Args:
        case: from `make_case`.
        keep: folder in which network, property and record stay; None = they are removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="fuzz_")) if keep is None else keep
    try:
        start = time.monotonic()
        verdict, reason = decide(case, folder)
        seconds = time.monotonic() - start
        judgement, why = judge(case, verdict, reason, folder)
    finally:
        if keep is None:
            shutil.rmtree(folder)
    return Result(case.seed, case.kind, verdict, judgement, why, case.least, seconds, case.flags)


def decide(case: Case, folder: Path) -> tuple[str, str]:
    """The verifier's verdict and its reason; files go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_onnx(case.module, case.shape, case.num_outputs, folder / "net.onnx")
    (folder / "property.vnnlib").write_text(property_text(case))
    (folder / "out.json").unlink(missing_ok=True)
    arguments = (
        *("--onnx_path", str(folder / "net.onnx")),
        *("--vnnlib_path", str(folder / "property.vnnlib")),
        *("--result_json", str(folder / "out.json")),
        *("--results_file", str(folder / "out.txt")),
        *("--cex_path", str(folder / "cex.txt")),
        *("--device", "cpu"),
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        verify([*arguments, *case.flags])
    (folder / "printed.txt").write_text(printed.getvalue())
    written = folder / "out.json"
    records = json.loads(written.read_text()) if written.exists() else []
    if not records:
        return "no answer", printed.getvalue()[-500:]
    return str(records[0]["verdict"]), str(records[0]["reason"])


def judge(case: Case, verdict: str, reason: str, folder: Path) -> tuple[Judgement, str]:
    """What the exact answer says of a verdict."""
    if verdict in _TROUBLE:
        return Judgement.FAILED, reason
    low, high = case.least
    band = BAND * case.scale
    if verdict == "sat":
        fault = _false_counterexample(case, folder)
        if fault:
            return Judgement.WRONG, fault
        if low > band:
            return Judgement.WRONG, "the counterexample replays, yet no point is unsafe"
        return Judgement.RIGHT, reason
    if verdict != "unsat":
        return Judgement.OPEN, reason
    if high < -band:
        return Judgement.WRONG, "a point of the box is unsafe"
    if high <= band:
        return Judgement.NOT_JUDGED, reason
    return Judgement.RIGHT, reason


def property_text(case: Case) -> str:
    """The property as VNN-LIB."""
    size = len(case.boxes[0].low)
    lines = [f"(declare-const X_{i} Real)" for i in range(size)]
    lines += [f"(declare-const Y_{j} Real)" for j in range(case.num_outputs)]
    low = np.min([box.low for box in case.boxes], axis=0)
    high = np.max([box.high for box in case.boxes], axis=0)
    lines += [f"(assert {bound})" for bound in _bounds(low, high)]
    parts = []
    for box in case.boxes:
        inside = _bounds(box.low, box.high) if len(case.boxes) > 1 else []
        parts += [f"(and {' '.join([*inside, *_rows(*clause)])})" for clause in box.clauses]
    lines.append(f"(assert (or {' '.join(parts)}))")
    return "\n".join(lines) + "\n"


def _bounds(low: np.ndarray, high: np.ndarray) -> list[str]:
    pairs = enumerate(zip(low, high, strict=True))
    sides = [(f"(>= X_{i} {_decimal(a)})", f"(<= X_{i} {_decimal(b)})") for i, (a, b) in pairs]
    return [bound for pair in sides for bound in pair]


def _rows(rows: np.ndarray, rhs: np.ndarray) -> list[str]:
    texts = []
    for row, limit in zip(rows, rhs, strict=True):
        terms = " ".join(f"(* {_decimal(value)} Y_{j})" for j, value in enumerate(row))
        texts.append(f"(<= (+ {terms}) {_decimal(limit)})")
    return texts


def _decimal(value: float) -> str:
    return np.format_float_positional(float(value), trim="0")


def _false_counterexample(case: Case, folder: Path) -> str:
    """What is wrong with the counterexample written, empty if nothing is."""
    found = read_counterexample(folder / "cex.txt")
    session = onnxruntime.InferenceSession(
        str(folder / "net.onnx"), providers=["CPUExecutionProvider"]
    )
    fed = {session.get_inputs()[0].name: found.inputs.reshape(1, *case.shape)}
    output = session.run(None, fed)[0].reshape(-1)
    inside = [box for box in case.boxes if _holds(box, found.inputs)]
    if not inside:
        return f"the counterexample {found.inputs.tolist()} lies in no box"
    if not any(_satisfied(clause, output) for box in inside for clause in box.clauses):
        return f"the counterexample's outputs {output.tolist()} satisfy no clause"
    return ""


def _holds(box: Box, point: np.ndarray) -> bool:
    """Whether a float32 point lies in the box, or is what float32 makes of the only ones there."""
    for value, low, high in zip(point.tolist(), box.low.tolist(), box.high.tolist(), strict=True):
        ends = (float(np.float32(low)), float(np.float32(high)))
        if not (low <= value <= high or value in ends and not _has_float32(low, high)):
            return False
    return True


def _has_float32(low: float, high: float) -> bool:
    first = np.float32(low)
    if float(first) < low:
        first = np.nextafter(first, np.float32(np.inf))
    return float(first) <= high


def _satisfied(clause: tuple[np.ndarray, np.ndarray], output: np.ndarray) -> bool:
    rows, rhs = clause
    values = [Fraction(value) for value in output.tolist()]
    return all(
        sum(Fraction(c) * y for c, y in zip(row, values, strict=True)) <= Fraction(limit)
        for row, limit in zip(rows.tolist(), rhs.tolist(), strict=True)
    )


def summary(results: Sequence[Result]) -> str:
    """Counts of judgements, per kind of network and in all."""
    lines = [f"{'':<10}" + "".join(f"{j.value:>12}" for j in Judgement) + f"{'seconds':>10}"]
    for kind in [*sorted({result.kind for result in results}), "all"]:
        own = [result for result in results if kind in (result.kind, "all")]
        counts = Counter(result.judgement for result in own)
        seconds = sum(result.seconds for result in own)
        lines.append(
            f"{kind:<10}" + "".join(f"{counts[j]:>12}" for j in Judgement) + f"{seconds:>10.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("count", type=int, help="cases to decide")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; default 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes; default 1")
    parser.add_argument("--keep", type=Path, help="folder in which the files of the cases stay")
    options = parser.parse_args(argv)
    seeds = range(options.seed, options.seed + options.count)
    results = []
    for result in _results(seeds, options.jobs, options.keep):
        results.append(result)
        if result.judgement in (Judgement.WRONG, Judgement.FAILED):
            print(result, flush=True)
    print(summary(results))
    wrong = any(result.judgement in (Judgement.WRONG, Judgement.FAILED) for result in results)
    return int(wrong)


def _results(seeds: range, jobs: int, keep: Path | None) -> Iterable[Result]:
    one = partial(_kept, keep)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _one_thread) as pool:
        yield from pool.imap_unordered(one, seeds)


def _kept(keep: Path | None, seed: int) -> Result:
    return run(make_case(seed), None if keep is None else keep / str(seed))


def _one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


if __name__ == "__main__":
    raise SystemExit(main())
