"""Time the VNN-LIB reader: seconds and peak memory on generated files.

Usage: python scripts/benchmark_vnnlib.py [--megabytes 50]

Each file is read in a process of its own, so that peak memory is that file's: a small file of the
size of an MNIST property (75 KB), and three large ones: many bounded inputs, one disjunction over
the inputs and outputs on a single line, and one disjunction over the outputs.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> None:
    """Generate the files, read each in a child process, print one line per file."""
    options = argparse.ArgumentParser(description="Time the VNN-LIB reader.")
    options.add_argument("--megabytes", type=float, default=50.0, help="size of the large files")
    options.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.read is not None:
        read(arguments.read)
        return
    size = int(arguments.megabytes * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        for name, write, num_bytes in (
            ("small_bounds", bounds, 75_000),
            ("large_bounds", bounds, size),
            ("large_input_disjunction", input_disjunction, size),
            ("large_output_disjunction", output_disjunction, size),
        ):
            path = Path(folder) / f"{name}.vnnlib"
            path.write_text("".join(write(num_bytes)))
            child = [sys.executable, __file__, "--read", str(path)]
            subprocess.run(child, check=True, cwd=REPOSITORY)


def read(path: Path) -> None:
    """Read `path` once and print size, seconds and peak memory of this process."""
    sys.path.insert(0, str(REPOSITORY))
    from complete_verifier.specification import read_vnnlib

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    specification = read_vnnlib(path)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{path.stem:26s} {path.stat().st_size / 1e6:8.3f} MB {seconds:8.3f} s "
        f"({cpu_seconds:.3f} s of CPU) peak {peak / 1024:7.0f} MiB ({before / 1024:.0f} before)  "
        f"{specification.num_inputs} inputs, {len(specification.regions)} regions, "
        f"{specification.num_clauses} clauses",
        flush=True,
    )


def declarations(num_inputs: int, num_outputs: int) -> str:
    """Return the declarations of all variables."""
    names = [f"X_{i}" for i in range(num_inputs)] + [f"Y_{i}" for i in range(num_outputs)]
    return "".join(f"(declare-const {name} Real)\n" for name in names)


def bounds(num_bytes: int) -> Iterator[str]:
    """Yield a property with many bounded inputs and a robustness disjunction."""
    num_inputs = max(1, num_bytes // 110)
    generator = random.Random(0)
    yield declarations(num_inputs, 10)
    for index in range(num_inputs):
        low = generator.random()
        yield f"(assert (<= X_{index} {low + 0.03!r}))\n(assert (>= X_{index} {low!r}))\n"
    yield "(assert (or" + "".join(f" (and (>= Y_{i} Y_9))" for i in range(9)) + "))\n"


def input_disjunction(num_bytes: int) -> Iterator[str]:
    """Yield, on one line, a disjunction of which each part has its own input box."""
    generator = random.Random(0)
    yield declarations(2, 1) + "(assert (or"
    for _ in range(num_bytes // 145):
        low, high = generator.random(), 1 + generator.random()
        yield (
            f" (and (>= X_0 {low!r}) (<= X_0 {high!r}) (>= X_1 {-high!r}) (<= X_1 {low!r})"
            f" (<= Y_0 {high - 3!r}))"
        )
    yield "))\n"


def output_disjunction(num_bytes: int) -> Iterator[str]:
    """Yield, on one line, a disjunction of conjunctions over the outputs."""
    generator = random.Random(0)
    yield declarations(2, 10)
    yield "".join(f"(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(2)) + "(assert (or"
    for index in range(num_bytes // 64):
        yield (
            f" (and (<= Y_{index % 9} {generator.random()!r})"
            f" (>= Y_9 Y_{index % 9}) (<= (* 2 Y_0) 3))"
        )
    yield "))\n"


if __name__ == "__main__":
    main()
